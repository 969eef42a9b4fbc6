import errno
import json

import pytest

import mas.errors
import sandbox.errors
from mas.service.problems import STATUS, problem, status_of


@pytest.mark.parametrize("module", [mas.errors, sandbox.errors])
def test_every_error_class_has_a_row(module):
    classes = {getattr(module, name) for name in module.__all__}
    assert classes - STATUS.keys() == set()


def test_every_error_class_is_listed_in_its_module():
    for module in (mas.errors, sandbox.errors):
        defined = {
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Exception)
        }
        assert defined == set(module.__all__)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (mas.errors.RunNotFound("x"), 404),
        (mas.errors.LegacyRunning("mas-tmux", None), 409),
        (mas.errors.TmuxMissing("no tmux"), 503),
        (sandbox.errors.InvalidSessionPath("../x", "it contains '..'"), 422),
        (sandbox.errors.GuestUnavailable("no guest", remedy="fetch it"), 503),
        (FileNotFoundError(errno.ENOENT, "No such file"), 404),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), 422),
        (OSError(errno.ENAMETOOLONG, "File name too long"), 422),
        (OSError(errno.ENOSPC, "No space left on device"), 507),
        (OSError(errno.EIO, "Input/output error"), 500),
        (KeyError("x"), 500),
    ],
)
def test_an_error_gets_the_status_of_its_row(error, status):
    assert status_of(error) == status


def test_a_name_that_is_no_text_does_not_spoil_the_answer():
    assert json.loads(problem(503, "the template unit/\udcff").body)["detail"] == "the template unit/?"
