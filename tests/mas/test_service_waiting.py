import asyncio
import threading

from fastapi import FastAPI
from fastapi.requests import Request

from mas.service.waiting import Clients, run_in_line


def in_line(*works):
    """What each (agent, work) answers, all of them begun in this order."""

    async def begin():
        app = FastAPI()
        app.state.clients = Clients()
        request = Request({"type": "http", "app": app})
        answers = await asyncio.gather(*(run_in_line(request, ("id", agent), work) for agent, work in works))
        return answers, dict(app.state.clients.lines)

    return asyncio.run(begin())


def test_work_for_one_agent_is_done_in_the_order_in_which_it_came():
    done = []
    answers, lines_left = in_line(*[("11", lambda n=n: done.append(n) or n) for n in range(50)])
    assert done == answers == list(range(50))
    assert lines_left == {}


def test_work_for_another_agent_does_not_stand_in_the_line():
    passed = threading.Event()
    first, second, other = [("11", lambda: passed.wait(30)), ("11", lambda: "second"), ("12", passed.set)]
    assert in_line(first, second, other)[0] == [True, "second", None]
