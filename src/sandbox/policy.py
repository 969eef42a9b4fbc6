"""The limits and grants of an execution, as a value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sandbox.errors import PolicyValidationError

__all__ = ["ExecutionPolicy", "load_policy"]

DEFAULT_ENV = {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
RESERVED_GUEST_PATHS = ("/app", "/tmp", "/usr")  # noqa: S108 - guest paths, not the host's

MOST_FUEL = (1 << 63) - 1  # that the engine can count

Count = Annotated[int, Field(gt=0, strict=True)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class ExecutionPolicy(BaseModel):
    """What one execution may use; frozen, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    fuel_budget: Annotated[Count, Field(le=MOST_FUEL)] | None = 100_000_000_000
    memory_bytes: Count = 512 * 1024 * 1024
    timeout_seconds: Seconds | None = 30.0
    stdout_max_bytes: Count = 2_000_000
    stderr_max_bytes: Count = 1_000_000
    workspace_max_bytes: Count | None = None
    workspace_max_files: Count | None = None
    disk_write_bytes: Count | None = 1024 * 1024 * 1024
    max_open_files: Count = 256
    mount_data_dir: Path | None = None
    guest_data_path: str = "/data"
    env: dict[str, str] = Field(default_factory=dict)
    preload: tuple[str, ...] = ()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _first_problem(error) from None

    @field_validator("env")
    @classmethod
    def _over_the_defaults(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError("names are non-empty, without '=', and nothing contains NUL")
            if any("\ud800" <= character <= "\udfff" for character in name + value):
                raise ValueError("names and values are text that UTF-8 can write")
        return {**DEFAULT_ENV, **env}

    @field_validator("guest_data_path")
    @classmethod
    def _apart_from_other_mounts(cls, path: str) -> str:
        parts = path.split("/")
        clean = path.startswith("/") and not {"", ".", ".."} & set(parts[1:]) and "\0" not in path
        if not clean or any(f"{path}/".startswith(f"{taken}/") for taken in RESERVED_GUEST_PATHS):
            raise ValueError("must be an absolute path without '..', outside /app, /tmp and /usr")
        return path

    @field_validator("preload")
    @classmethod
    def _module_names(cls, preload: tuple[str, ...]) -> tuple[str, ...]:
        for name in preload:
            if not _MODULE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a module name")
        return preload


def _first_problem(error: ValidationError) -> PolicyValidationError:
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "policy"
    rule = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        rule = f"there is no such field; the fields are {', '.join(ExecutionPolicy.model_fields)}"
    return PolicyValidationError(field, problem["input"], rule)


def load_policy(path: str | Path) -> ExecutionPolicy:
    """The policy in a TOML file; the defaults when there is no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ExecutionPolicy()
    except UnicodeDecodeError as error:
        raise PolicyValidationError("policy", str(path), f"the file is not UTF-8 text: {error}") from None
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyValidationError("policy", str(path), f"the file is not valid TOML: {error}") from None
    return ExecutionPolicy(**fields)
