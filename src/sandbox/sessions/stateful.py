"""Sessions whose variables persist from one execution to the next."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sandbox.lasting import LastingInterpreter
from sandbox.sandbox import PythonSandbox
from sandbox.sessions.live import SAVE_WITHIN_SECONDS, LiveSession, live_sessions
from sandbox.sessions.statefolder import StateFolder, know_image

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.cache import Cache
    from sandbox.images import Image
    from sandbox.interpreter import Outcome, Request
    from sandbox.snapshots import Snapshot


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
        folder = StateFolder(root, session_id)
        self._live = live_sessions.get(root, session_id, partial(LiveSession, folder, self.logger))
        if fresh_interpreter:
            self._live.discard()
            folder.discard()

    def _run(self, request: Request, image: Image, cache: Cache | None) -> Outcome:
        if request.kind != self._job_kind:
            return super()._run(request, image, cache)
        know_image(image)

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

        return self._live.take_turn(
            request,
            image=image,
            start=start,
            save_within=self._save_within,
            settled=live_sessions.settled,
        )

    def hibernate(self) -> None:
        """Save the interpreter and take it out of memory; the next execution brings it back."""
        self._live.hibernate()
        live_sessions.settled(self._live)

    def close(self) -> None:
        """Hibernate, and refuse further executions; may be called twice."""
        if not self._closed:
            self.hibernate()
        super().close()
