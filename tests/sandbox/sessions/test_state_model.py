"""A random program of turns, hibernations, forks, checkpoints, roll-backs and kills, beside plain CPython."""

from __future__ import annotations

import builtins
import copy
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandbox.sessions import create_session_sandbox, fork_session, get_session_sandbox
from sandbox.sessions.residents import live_sessions

MOST_SESSIONS = 4
LAZY_SECONDS = 1000  # nothing is saved by itself while the program runs
NAMES = ("a", "b", "c")

names, numbers = st.sampled_from(NAMES), st.integers(0, 99)
statements = st.one_of(
    st.builds("{} = {}".format, names, numbers),
    st.builds("{} = [{}, {}]".format, names, numbers, numbers),
    st.builds("{} = {}".format, names, names),
    st.builds("{}.append({})".format, names, numbers),
    st.builds("{} = {{'k': {}}}".format, names, names),
    st.builds("{} += {}".format, names, names),
    st.builds("{}, {} = {}, {}".format, names, names, names, numbers),
    st.builds("del {}".format, names),
    st.builds("def f(n={}): return [{}, n]".format, numbers, names),
    st.builds("{} = f({})".format, names, numbers),
    st.builds("1 / {}".format, st.integers(0, 1)),
    st.builds("put({!r}, {})".format, st.sampled_from(["x.txt", "y.txt"]), numbers),
    st.builds("{} = take('x.txt')".format, names),
)
turns = st.lists(statements, min_size=1, max_size=4).map("\n".join)
checkpoint_names = st.sampled_from(["one", "two"])

FIRST_TURN = "a, b, c = 0, [1], [2]\ndef f(n): return n"
FILE_FUNCTIONS = """
def put(name, number):
    with open(name, 'w') as f: f.write(str(number))
def take(name):
    with open(name) as f: return f.read()
"""


class Model:
    """One session in plain CPython: a namespace, and files in a dictionary."""

    def __init__(self):
        self.files = {}
        self.space = {}
        self.saved = None
        self.checkpoints = {}

    def turn(self, code):
        """Whether it came to its end; what it did until then stays."""
        try:
            exec(compile(code, "<turn>", "exec"), self._globals())
        except Exception:
            return False
        return True

    def _globals(self):
        # The namespace itself is run in, so that functions see later changes as they do in a session.
        self.space.update(__builtins__=builtins, put=self._put, take=self._take)
        return self.space

    def _put(self, name, number):
        self.files[name] = str(number)

    def _take(self, name):
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def variables(self):
        return {name: self.space[name] for name in NAMES if name in self.space}

    def snapshot(self):
        """The variables, with what they share, and the function's source."""
        return copy.deepcopy(self.variables()), copy.deepcopy(self._function())

    def _function(self):
        function = self.space.get("f")
        return None if function is None else (function.__code__, function.__defaults__)

    def go_to(self, snapshot):
        variables, function = copy.deepcopy(snapshot) if snapshot is not None else ({}, None)
        self.space = variables
        if function is not None:
            code, defaults = function
            self.space["f"] = type(lambda: None)(code, self.space, "f", defaults)
        self._globals()


class Sessions(RuleBasedStateMachine):
    """The same steps in sessions and in their models."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.pairs = []

    @initialize()
    def begin(self):
        session_id, box = create_session_sandbox(
            workspace_root=self.root, stateful=True, save_within_seconds=LAZY_SECONDS
        )
        box.execute(FILE_FUNCTIONS)
        box.execute(FIRST_TURN)
        box.hibernate()
        model = Model()
        model.turn(FIRST_TURN)
        model.saved = model.snapshot()
        self.pairs.append((session_id, box, model))

    def pick(self, data):
        return data.draw(st.sampled_from(self.pairs), label="session")

    @rule(data=st.data(), code=turns)
    def turn(self, data, code):
        _, box, model = self.pick(data)
        result = box.execute(code)
        assert (result.exit_code == 0, result.state) == (model.turn(code), "live"), (code, result.stderr)

    @rule(data=st.data(), name=names, number=numbers)
    def note(self, data, name, number):
        _, box, model = self.pick(data)
        code = f"{name} = [{name}, {number}]" if name in model.space else f"{name} = {number}"
        assert (box.execute(code).state, model.turn(code)) == ("live", True)

    @rule(data=st.data(), code=turns)
    def durable_turn(self, data, code):
        session_id, _, model = self.pick(data)
        box = get_session_sandbox(session_id, workspace_root=self.root, save_within_seconds=0)
        result = box.execute(code)
        assert (result.exit_code == 0, result.state) == (model.turn(code), "saved"), (code, result.stderr)
        model.saved = model.snapshot()

    @rule(data=st.data(), code=turns, hangs=st.booleans())
    def stopped_turn(self, data, code, hangs):
        _, box, model = self.pick(data)
        end = "while True: pass" if hangs else "import os\nos._exit(1)"
        before = model.snapshot()
        ran = model.turn(code)
        result = box.execute(f"{code}\n{end}", timeout_seconds=0.15 if hangs else None)
        assert result.state == ("rolled_back" if ran else "live")
        if ran:
            model.go_to(before)  # and the files stay

    @rule(data=st.data())
    def hibernate(self, data):
        _, box, model = self.pick(data)
        box.hibernate()
        model.saved = model.snapshot()

    @rule(data=st.data())
    def kill(self, data):
        session_id, _, model = self.pick(data)
        live_sessions.forget(self.root, session_id)
        model.go_to(model.saved)

    @precondition(lambda self: len(self.pairs) < MOST_SESSIONS)
    @rule(data=st.data())
    def fork(self, data):
        session_id, _, model = self.pick(data)
        (new,) = fork_session(session_id, workspace_root=self.root)
        model.saved = model.snapshot()
        box = get_session_sandbox(new, workspace_root=self.root, save_within_seconds=LAZY_SECONDS)
        other = Model()
        other.files, other.saved = dict(model.files), model.saved
        other.go_to(model.saved)
        self.pairs.append((new, box, other))

    @rule(data=st.data(), name=checkpoint_names, files=st.booleans())
    def checkpoint(self, data, name, files):
        _, box, model = self.pick(data)
        box.checkpoint(name, files=files)
        model.saved = model.snapshot()
        model.checkpoints[name] = model.saved, dict(model.files) if files else None

    @rule(data=st.data(), name=checkpoint_names, files=st.booleans())
    def restore(self, data, name, files):
        _, box, model = self.pick(data)
        if name not in model.checkpoints:
            return
        box.restore(name, files=files)
        model.saved, kept = model.checkpoints[name]
        model.go_to(model.saved)
        if files and kept is not None:
            model.files = dict(kept)

    @rule(data=st.data())
    def close_and_open(self, data):
        place = data.draw(st.integers(0, len(self.pairs) - 1), label="place")
        session_id, box, model = self.pairs[place]
        box.close()
        model.saved = model.snapshot()
        box = get_session_sandbox(session_id, workspace_root=self.root, save_within_seconds=LAZY_SECONDS)
        self.pairs[place] = session_id, box, model

    @invariant()
    def files_agree(self):
        for session_id, _, model in self.pairs:
            found = {path.name: path.read_text() for path in (self.root / session_id).glob("*.txt")}
            assert found == model.files

    def teardown(self):
        for _, box, model in self.pairs:
            told = box.execute(f"print({{name: globals()[name] for name in {NAMES} if name in globals()}})")
            assert told.stdout == f"{model.variables()}\n"  # as text, because a list may hold itself
            box.close()
        self.folder.cleanup()


def test_a_random_program_agrees_with_plain_python():
    run_state_machine_as_test(
        Sessions,
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
