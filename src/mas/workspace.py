"""Where a run works: its folders by mode, made from templates."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mas.errors import TemplateUnusable, WorkspaceFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mas.config import Mode

__all__ = [
    "CONTROL_FILES",
    "PREFIX_CHARACTERS",
    "Layout",
    "copy_templates",
    "disk_work",
    "install_templates",
    "legacy_session_name",
    "make_folders",
]

CONTROL_FILES = (".session", "config.json")
TEMPLATES = ("unit", "workflows")
PACKAGED = Path(__file__).with_name("templates")
LEGACY_NAME = "tmux"
PROJECT_FILE, PROJECT_KEY = ".masrc", "PROJECT_NAME"
PREFIX_CHARACTERS = 8
SPECIAL_FILES = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}


@dataclass(frozen=True)
class Layout:
    """Every path of one run.

    An isolated run has all it needs in sessions/<id>. A legacy run works in MAS_ROOT/unit and
    MAS_ROOT/workflows; its sandbox, logs and control files are in sessions/.legacy/<id>. What no
    sandboxed code may see, the records of the supervisors, is in sessions/.mas/<id> for both.
    """

    root: Path
    session_id: str
    mode: Mode

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    @property
    def sandbox_root(self) -> Path:
        """The folder whose child named by the id is the run's sandbox session."""
        return self.sessions if self.mode == "isolated" else self.sessions / ".legacy"

    @property
    def folder(self) -> Path:
        return self.sandbox_root / self.session_id

    @property
    def working_dir(self) -> Path:
        return self.folder if self.mode == "isolated" else self.root

    @property
    def unit_dir(self) -> Path:
        return self.working_dir / "unit"

    @property
    def workflows_dir(self) -> Path:
        return self.working_dir / "workflows"

    @property
    def logs_dir(self) -> Path:
        return self.folder / "logs"

    @property
    def state_dir(self) -> Path:
        return self.sessions / ".mas" / self.session_id

    @property
    def tmux_session(self) -> str:
        if self.mode == "legacy":
            return legacy_session_name(self.root)
        return f"mas-{self.session_id[:PREFIX_CHARACTERS]}"

    def environment(self) -> dict[str, str]:
        """What every process of the run finds in its environment; MAS_RUN_ID marks it as one of them."""
        return {
            "MAS_ROOT": str(self.root),
            "MAS_RUN_ID": self.session_id,
            "MAS_SESSION_DIR": str(self.folder),
            "MAS_SESSION_ID": self.session_id,
            "MAS_SESSION_MODE": self.mode,
            "MAS_UNIT_DIR": str(self.unit_dir),
            "MAS_WORKFLOWS_DIR": str(self.workflows_dir),
        }


@contextmanager
def disk_work(path: Path) -> Iterator[None]:
    """What the disk refuses in this block is WorkspaceFailed at `path`."""
    try:
        yield
    except WorkspaceFailed:
        raise
    except OSError as error:
        raise WorkspaceFailed(path, error.strerror or str(error)) from error


def copy_templates(root: Path, destination: Path) -> None:
    """Fill a new session folder: from MAS_ROOT where it has templates, else from those of the package."""
    for name in TEMPLATES:
        source = root / name if (root / name).exists() else PACKAGED / name
        _copy_template(source, destination / name)


def install_templates(root: Path) -> list[Path]:
    """Put the package's templates into MAS_ROOT where it has none; gives the folders that were made."""
    made = []
    for name in TEMPLATES:
        if not (root / name).exists():
            _copy_whole(PACKAGED / name, root / name)
            made.append(root / name)
    return made


def make_folders(parent: Path, names: Iterable[str]) -> list[Path]:
    """The folders of these names where they are missing; gives those that were made.

    Sandboxed code can put a link in the place of `parent`: nothing is made behind one.
    """
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return [parent / name for name in names if _make_folder(name, descriptor)]
    finally:
        os.close(descriptor)


def _make_folder(name: str, parent: int) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def legacy_session_name(root: Path) -> str:
    """mas-tmux, or mas-<project> where a .masrc in the folder or above names one."""
    for folder in (root, *root.parents):
        project = _project_name(folder / PROJECT_FILE)
        if project:
            return "mas-" + re.sub(r"[^A-Za-z0-9_-]", "-", project)
    return f"mas-{LEGACY_NAME}"


def _project_name(path: Path) -> str | None:
    """PROJECT_NAME of a file of shell assignments, which is read and never run."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    values = [value for line in lines if (value := _assigned(line)) is not None]
    return values[-1] if values else None


def _assigned(line: str) -> str | None:
    found = re.match(rf"\s*(?:export\s+)?{PROJECT_KEY}=(.*)", line)
    if found is None:
        return None
    try:
        words = shlex.split(found[1], comments=True)
    except ValueError:
        return None
    return words[0] if words else ""


def _copy_whole(source: Path, destination: Path) -> None:
    """Copy a folder under another name and rename it, so that nobody sees half of it."""
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
    try:
        _copy_template(source, temporary)
        temporary.rename(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_template(source: Path, destination: Path) -> None:
    """Copy a folder of templates; TemplateUnusable names what is in the way, a full disk is an OSError."""
    try:
        _copy_folder(source, destination, source.parent)
    except OSError as error:
        culprit = Path(error.filename or destination)
        # Both names are given where reading and writing were one call, and then it is the disk that is full.
        if error.filename2 is None and culprit.is_relative_to(source):
            reason = f"cannot be read ({error.strerror})"
            raise TemplateUnusable(culprit.relative_to(source.parent), reason) from error
        raise


def _copy_folder(source: Path, destination: Path, base: Path) -> None:
    destination.mkdir()
    for path in sorted(source.iterdir()):
        _copy_entry(path, destination / path.name, base)
    shutil.copystat(source, destination)


def _copy_entry(path: Path, copy: Path, base: Path) -> None:
    kind = stat.S_IFMT(path.lstat().st_mode)
    if kind == stat.S_IFLNK:
        copy.symlink_to(path.readlink())
    elif kind == stat.S_IFDIR:
        _copy_folder(path, copy, base)
    elif kind == stat.S_IFREG:
        shutil.copy2(path, copy)
    else:  # opening one of these could wait for ever, and reading a device never ends
        what = SPECIAL_FILES.get(kind, "device")
        raise TemplateUnusable(path.relative_to(base), f"is a {what} and cannot be copied")
