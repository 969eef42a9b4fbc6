"""This project, through its public API, in sessions."""

from serving import Contestant, output_of, serve, timed

from sandbox import (
    ExecutionPolicy,
    create_session_sandbox,
    fork_session,
    get_session_sandbox,
    prune_sessions,
)


class SessionSandbox(Contestant):
    def runner(self, wish):
        fuel = ExecutionPolicy().fuel_budget if wish.metered else None
        policy = ExecutionPolicy(preload=wish.preload, fuel_budget=fuel, timeout_seconds=None)
        _, sandbox = create_session_sandbox(workspace_root=self.root, policy=policy)
        return output_of(sandbox), sandbox.workspace

    def session(self, preload):
        policy = ExecutionPolicy(preload=preload)
        _, sandbox = create_session_sandbox(workspace_root=self.root, policy=policy, stateful=True)
        run = output_of(sandbox)
        run("pass")
        return run

    def keep(self, code):
        session_id, sandbox = create_session_sandbox(workspace_root=self.root, stateful=True)
        sandbox.execute("pass")

        def run():
            sandbox.execute(code)
            sandbox.close()

        return {**timed(run), "token": [str(self.root), session_id]}

    def revive(self, token, code):
        root, session_id = token
        return timed(lambda: output_of(get_session_sandbox(session_id, workspace_root=root))(code))

    def fork(self, code, then):
        session_id, sandbox = create_session_sandbox(workspace_root=self.root, stateful=True)
        sandbox.execute(code)

        def run():
            (copy,) = fork_session(session_id, workspace_root=self.root)
            return output_of(get_session_sandbox(copy, workspace_root=self.root))(then)

        return timed(run)

    def create_session(self):
        create_session_sandbox(workspace_root=self.root / "created")

    def make_sessions(self, count):
        root = self.root / "pruned"
        made = [create_session_sandbox(workspace_root=root)[1].workspace for _ in range(count)]

        def prune_all():
            pruned = prune_sessions(older_than_hours=0, workspace_root=root)
            return str(len(pruned.deleted_sessions))

        return made, prune_all


if __name__ == "__main__":
    serve(SessionSandbox)
