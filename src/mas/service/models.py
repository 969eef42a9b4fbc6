"""What requests and answers hold, beyond the values of runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mas.config import AgentId, Value

__all__ = ["Accepted", "Deleted", "Execution", "FileList", "Health", "Written"]

CODE_MAX_CHARACTERS = 1_000_000
TIMEOUT_MAX_SECONDS = 300.0

Code = Annotated[str, StringConstraints(min_length=1, max_length=CODE_MAX_CHARACTERS)]


class Execution(Value):
    """Python to run in a fresh interpreter in the session's sandbox."""

    code: Code = Field(description="A program; `/app` is the session's folder.", examples=["print(2 ** 64)"])
    stdin: str = Field(default="", description="What the program reads from standard input.")
    args: tuple[str, ...] = Field(default=(), max_length=256, description="`sys.argv[1:]` of the program.")
    timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=TIMEOUT_MAX_SECONDS,
        description="Wall clock; the session's policy when left out.",
    )


class Accepted(Value):
    """A message that was typed into a pane."""

    session_id: str
    target: AgentId
    characters: int = Field(description="The length of the text.")


class FileList(Value):
    """The files of a session's sandbox, sorted, relative to its folder."""

    session_id: str
    files: tuple[str, ...]


class Written(Value):
    """A file that now has the content that was sent."""

    path: str
    size: int = Field(description="In bytes.")


class Deleted(Value):
    """A file or folder that is gone."""

    path: str
    deleted: Literal[True] = True


class Health(Value):
    """The server is up."""

    status: Literal["ok"] = "ok"
    version: str
