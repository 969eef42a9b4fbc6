"""The structured log events that hosts can subscribe to."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, Protocol

__all__ = ["SandboxLogger"]


class StructuredLogger(Protocol):
    """Any logger that is called structlog's way."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


class _DefaultLogger:
    """The standard library's logger "sandbox", asked first whether anybody listens.

    An event that nobody hears costs a comparison this way, and not the whole chain of processors.
    """

    def __init__(self) -> None:
        self._target = logging.getLogger("sandbox")
        if not self._target.handlers:  # without any, Python itself prints warnings to stderr
            self._target.addHandler(logging.NullHandler())

    @cached_property
    def _events(self) -> StructuredLogger:
        return _rendering_to(self._target)

    def debug(self, event: str, **fields: Any) -> None:
        if self._target.isEnabledFor(logging.DEBUG):
            self._events.debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._target.isEnabledFor(logging.INFO):
            self._events.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._target.isEnabledFor(logging.WARNING):
            self._events.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        if self._target.isEnabledFor(logging.ERROR):
            self._events.error(event, **fields)


def _rendering_to(target: logging.Logger) -> StructuredLogger:
    import structlog  # a quarter of the time that importing this package takes, and rarely needed

    # Wrapped by hand: structlog.configure() would change the host's global configuration.
    logger: StructuredLogger = structlog.wrap_logger(
        target,
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )
    return logger


class SandboxLogger:
    """Sends events to a logger; `bind` adds fields to every later event.

    Without a logger it uses `logging.getLogger("sandbox")`, which is silent until the host
    configures logging.
    """

    def __init__(self, logger: StructuredLogger | None = None, **fields: Any) -> None:
        self._logger = logger if logger is not None else _DefaultLogger()
        self._fields = fields

    def bind(self, **fields: Any) -> SandboxLogger:
        """The same logger with `fields` in every event."""
        return SandboxLogger(self._logger, **{**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._logger.debug(event, **{**self._fields, **fields})

    def info(self, event: str, **fields: Any) -> None:
        self._logger.info(event, **{**self._fields, **fields})

    def warning(self, event: str, **fields: Any) -> None:
        self._logger.warning(event, **{**self._fields, **fields})

    def error(self, event: str, **fields: Any) -> None:
        self._logger.error(event, **{**self._fields, **fields})
