"""What the environment says about where and how runs work."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mas.config import Mode, first_problem, split_command
from mas.errors import InvalidConfiguration

__all__ = ["Settings", "read_settings"]


def _checked_command(command: str) -> str:
    split_command(command)
    return command


def _checked_root(path: Path) -> Path:
    root = path.expanduser().resolve()
    # The index, the .session files and every answer tell this path as text.
    if str(root).encode(errors="replace") != os.fsencode(root):
        raise ValueError("the path of this folder is not UTF-8; rename the folder, or use another")
    if root.exists() and not root.is_dir():
        raise ValueError(f"{root} is no folder; name one")
    return root


def _checked_socket(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError("use up to 64 letters, digits, dots, dashes and underscores")
    return name


def _checked_token(token: SecretStr) -> SecretStr:
    # A header carries nothing else in a way that every client and server agrees on.
    if not re.fullmatch(r"[\x21-\x7e]+", token.get_secret_value()):
        raise ValueError("use letters, digits and punctuation of ASCII alone, without spaces")
    return token


class Settings(BaseSettings):
    """The MAS_* variables, read once; passed explicitly to everything below the doors."""

    model_config = SettingsConfigDict(env_prefix="MAS_", env_ignore_empty=True, frozen=True, extra="ignore")

    root: Annotated[Path, AfterValidator(_checked_root)] = Field(
        default_factory=Path.cwd, validate_default=True
    )
    session_mode: Mode = "legacy"
    session_id: str | None = None
    tmux_socket: Annotated[str, AfterValidator(_checked_socket)] = "mas"
    agent_ready_seconds: Annotated[float, Field(gt=0, le=600)] = 20.0
    """How long an agent may stay busy after its start before it gets its prompt all the same."""
    agent_command: Annotated[str, AfterValidator(_checked_command)] | None = None
    api_token: Annotated[SecretStr, AfterValidator(_checked_token)] | None = None

    @property
    def address_file(self) -> Path:
        """Where a running server says how to reach it; only its owner can read it."""
        return self.root / "sessions" / ".api.json"


def read_settings() -> Settings:
    """The settings of this process; InvalidConfiguration names a variable that breaks its rule."""
    try:
        return Settings()
    except ValidationError as error:
        field, reason = first_problem(error)
        raise InvalidConfiguration(f"MAS_{field.upper()}", reason) from error
