"""Code and files in a session's sandbox."""

import os
import threading
from collections.abc import Iterator
from io import FileIO
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.requests import Request
from fastapi.responses import StreamingResponse

from mas.service.models import Deleted, Execution, FileList, Written
from mas.service.problems import responses
from mas.service.routes import OneSession, TheRuns, require_json
from mas.service.waiting import run_for_client
from sandbox.result import SandboxResult

__all__ = ["router"]

PIECE_BYTES = 1024 * 1024
BYTES = {"schema": {"type": "string", "format": "binary"}}

FilePath = Annotated[
    str,
    Path(
        alias="path",
        description="Relative to the session's folder, with slashes.",
        examples=["work/brief.md"],
    ),
]

router = APIRouter(tags=["sandbox"])


class FileResponse(StreamingResponse):
    """A file's bytes; never shown by a browser as a page."""

    media_type = "application/octet-stream"


def send_file(file: FileIO) -> FileResponse:
    """An open file as it is now, piece by piece, because sandboxed code chooses how large it is."""
    size = os.fstat(file.fileno()).st_size
    return FileResponse(_pieces(file, size), headers={"Content-Length": str(size)})


def _pieces(file: FileIO, size: int) -> Iterator[bytes]:
    with file:
        while size and (data := file.read(min(size, PIECE_BYTES))):
            size -= len(data)
            yield data


async def read_body(request: Request) -> bytes:
    """The whole body; the guard holds it to its limit while it arrives."""
    return await request.body()


@router.post(
    "/sessions/{sessionId}/execute",
    dependencies=[Depends(require_json)],
    response_description="What the program did.",
    responses=responses(404, 409, 413, 415, 422, 503),
)
async def execute_code(
    request: Request, runs: TheRuns, session_id: OneSession, execution: Execution
) -> SandboxResult:
    """Run Python in the session's sandbox and wait for its end; a client that leaves ends it.

    What the program did is the answer, errors and limits included: see `exit_code` and `stopped_by`.
    """

    def run(cancel: threading.Event) -> SandboxResult:
        with runs.sandbox(session_id) as sandbox:
            return sandbox.execute(
                execution.code,
                stdin=execution.stdin,
                args=execution.args,
                timeout_seconds=execution.timeout_seconds,
                cancel=cancel,
            )

    return await run_for_client(request, run)


@router.get(
    "/sessions/{sessionId}/files", response_description="The files.", responses=responses(404, 409, 422)
)
def list_files(
    runs: TheRuns,
    session_id: OneSession,
    pattern: Annotated[
        str | None, Query(min_length=1, max_length=1_000, description="Like `*.csv` or `data/**/*.csv`.")
    ] = None,
) -> FileList:
    """The files that code in the session's sandbox sees."""
    return FileList(session_id=session_id, files=runs.list_files(session_id, pattern=pattern))


@router.get(
    "/sessions/{sessionId}/files/{path:path}",
    response_class=FileResponse,
    response_description="The content.",
    responses={200: {"content": {FileResponse.media_type: BYTES}}, **responses(404, 409, 422)},
)
def read_file(runs: TheRuns, session_id: OneSession, path: FilePath) -> FileResponse:
    """The bytes of a file."""
    return send_file(runs.open_file(session_id, path))


@router.put(
    "/sessions/{sessionId}/files/{path:path}",
    openapi_extra={"requestBody": {"content": {FileResponse.media_type: BYTES}}},
    response_description="It is written.",
    responses=responses(404, 409, 413, 422, 507),
)
def write_file(
    runs: TheRuns, session_id: OneSession, path: FilePath, body: Annotated[bytes, Depends(read_body)]
) -> Written:
    """Write a file whole, with its folders; what was there is replaced at once."""
    runs.write_file(session_id, path, body)
    return Written(path=path, size=len(body))


@router.delete(
    "/sessions/{sessionId}/files/{path:path}",
    response_description="It is gone.",
    responses=responses(404, 409, 422),
)
def delete_file(
    runs: TheRuns,
    session_id: OneSession,
    path: FilePath,
    *,
    recursive: Annotated[bool, Query(description="A folder, with everything in it.")] = False,
) -> Deleted:
    """Remove a file, or a folder where `recursive` says so."""
    runs.delete_file(session_id, path, recursive=recursive)
    return Deleted(path=path)
