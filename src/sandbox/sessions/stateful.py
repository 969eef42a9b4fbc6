"""Sessions whose variables persist from one execution to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.lasting import LastingInterpreter
from sandbox.sandbox import PythonSandbox
from sandbox.sessions.live import Terms
from sandbox.sessions.residents import live_sessions
from sandbox.sessions.statefolder import know_image

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.cache import Cache
    from sandbox.images import Image
    from sandbox.interpreter import Outcome, Request
    from sandbox.snapshots import Snapshot


SAVE_WITHIN_SECONDS = 1.0


class StatefulPythonSandbox(PythonSandbox):
    """Python whose turns share one namespace, in memory or saved, across processes."""

    _job_kind = "turn"

    def __init__(
        self,
        *,
        root: Path,
        session_id: str,
        save_within_seconds: float = SAVE_WITHIN_SECONDS,
        fresh_interpreter: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(session_id=session_id, **options)
        if not save_within_seconds >= 0:
            raise ValueError(f"save_within_seconds is {save_within_seconds!r}: it must be 0 or more")
        self._save_within = save_within_seconds
        self._hidden = frozenset(options.get("host_only", ()))
        self._terms: Terms | None = None
        self._live = live_sessions.get(root, session_id, self.logger)
        if fresh_interpreter:
            self._live.begin_anew()
            live_sessions.note(self._live)

    def _run(self, request: Request, image: Image, cache: Cache | None) -> Outcome:
        if request.kind != self._job_kind:
            return super()._run(request, image, cache)
        if self._terms is None:
            self._terms = self._make_terms(know_image(image), cache)
        return self._live.take_turn(
            request,
            self._terms,
            save_within=self._save_within,
            settled=live_sessions.settled,
            make_room=live_sessions.make_room,
        )

    def _make_terms(self, image: Image, cache: Cache | None) -> Terms:
        def start(base: Image, snapshot: Snapshot | None) -> LastingInterpreter:
            return LastingInterpreter(
                base,
                self.policy,
                self._root,
                host_only=self._host_only,
                cache=cache,
                logger=self.logger,
                snapshot=snapshot,
            )

        limits = self.policy, self._hidden, self._root
        return Terms(image, self.policy.memory_bytes, start, limits)

    def hibernate(self) -> None:
        """Save the interpreter and take it out of memory; the next execution brings it back."""
        self._live.hibernate()
        live_sessions.note(self._live)

    def close(self) -> None:
        """Hibernate, and refuse further executions; may be called twice."""
        if not self._closed:
            self.hibernate()
        super().close()
