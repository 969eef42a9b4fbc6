"""The guest's waits, which must end when the guest must end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandbox.wasm import abi

if TYPE_CHECKING:
    from sandbox.wasm.call import Call
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.streams import Input, Output

MOST_SUBSCRIPTIONS = 1024
STREAM_POLL_SECONDS = 0.02
NANOSECONDS = 1_000_000_000


class Poller(Protocol):
    """What a wait needs to know of the gate."""

    def now(self, clock: int) -> int | None: ...
    def stream(self, fd: int) -> Input | Output | None: ...
    def is_open(self, fd: int) -> bool: ...


def poll(gate: Poller, call: Call, memory: Memory, source: int, target: int, count: int, out: int) -> int:
    """Wait for the first of `count` subscriptions, and write an event for each that is due.

    wasmtime would sleep inside the host, where neither fuel nor an epoch reaches it.
    """
    if not 0 < count <= MOST_SUBSCRIPTIONS:
        return abi.EINVAL
    table = memory.read(source, count * abi.SUBSCRIPTION.size)
    if table is None or not memory.within(target, count * abi.EVENT.size) or not memory.within(out, 4):
        return abi.EFAULT
    asked = list(abi.SUBSCRIPTION.iter_unpack(table))
    due = _wait(gate, call, asked)
    for number, (user_data, kind, error) in enumerate(due):
        memory.pack(abi.EVENT, target + number * abi.EVENT.size, user_data, error, kind, 1, 0)
    memory.pack(abi.U32, out, len(due))
    return abi.SUCCESS


def _wait(gate: Poller, call: Call, asked: list[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    waits = [_nanoseconds(gate, subscription) for subscription in asked]
    waited = 0
    while True:
        call.check()
        due = [
            (asked[number][0], asked[number][1], _error(gate, asked[number]))
            for number, wait in enumerate(waits)
            if (_is_ready(gate, asked[number]) if wait is None else wait <= waited)
        ]
        if due:
            return due
        rest = min((wait - waited for wait in waits if wait is not None), default=NANOSECONDS)
        blocked = any(wait is None for wait in waits)
        pause = min(rest, int(STREAM_POLL_SECONDS * NANOSECONDS)) if blocked else rest
        call.wait(pause / NANOSECONDS)
        waited += pause


def _nanoseconds(gate: Poller, subscription: tuple[int, ...]) -> int | None:
    """How long a subscription waits at most; None for one on a descriptor."""
    _, kind, clock, timeout, _, flags = subscription
    if kind != abi.EVENT_CLOCK:
        return None if kind in (abi.EVENT_FD_READ, abi.EVENT_FD_WRITE) else 0
    if not flags & abi.CLOCK_IS_ABSOLUTE:
        return timeout
    now = gate.now(clock)
    return 0 if now is None else max(0, timeout - now)


def _error(gate: Poller, subscription: tuple[int, ...]) -> int:
    _, kind, number, *_ = subscription
    if kind == abi.EVENT_CLOCK:
        return abi.SUCCESS
    if kind not in (abi.EVENT_FD_READ, abi.EVENT_FD_WRITE):
        return abi.EINVAL
    return abi.SUCCESS if gate.is_open(number) else abi.EBADF


def _is_ready(gate: Poller, subscription: tuple[int, ...]) -> bool:
    stream = gate.stream(subscription[2])
    return stream is None or stream.is_ready()
