"""The configuration of a run: which agents it has, what each is told."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from mas.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CONTROL_CHARACTERS",
    "MESSAGE_MAX_CHARACTERS",
    "META_ID",
    "MODES",
    "UNIT_WINDOWS",
    "Agent",
    "AgentId",
    "Agents",
    "Message",
    "Mode",
    "RunConfig",
    "Text",
    "Unit",
    "Value",
    "default_team",
    "first_problem",
    "load_config",
    "split_command",
]

META_ID = "00"
META_WINDOW = "meta"
UNIT_WINDOWS = {1: "design", 2: "development", 3: "business", 4: "unit4"}
PROMPT_MAX_CHARACTERS = 5_000
MESSAGE_MAX_CHARACTERS = 1_000_000
COMMAND_MAX_CHARACTERS = 4_096

# Everything a keyboard sends as text: no control characters but tab, newline and return. An escape
# sequence would end a bracketed paste early, and ^C or ^D would act on the agent instead of reaching it.
CONTROL_CHARACTERS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
TEXT_PATTERN = f"^[^{CONTROL_CHARACTERS}]*$"

Mode = Literal["legacy", "isolated"]
MODES: tuple[Mode, ...] = get_args(Mode)
AgentId = Annotated[str, StringConstraints(pattern=r"^[0-9]{2}$")]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=MESSAGE_MAX_CHARACTERS, pattern=TEXT_PATTERN)
]
Prompt = Annotated[
    str, StringConstraints(min_length=1, max_length=PROMPT_MAX_CHARACTERS, pattern=TEXT_PATTERN)
]
Command = Annotated[
    str, StringConstraints(min_length=1, max_length=COMMAND_MAX_CHARACTERS, pattern=TEXT_PATTERN)
]


class Value(BaseModel):
    """A frozen value: snake_case here, camelCase in JSON, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class Agent(Value):
    """One agent: two digits, what it is told once it is ready, and what runs in its pane."""

    id: AgentId
    prompt: Prompt
    command: Command | None = None

    @field_validator("command")
    @classmethod
    def _command_splits(cls, command: str | None) -> str | None:
        if command is not None:
            split_command(command)
        return command


class Unit(Value):
    """A manager and its workers, in one window."""

    unit_id: Annotated[StrictInt, Field(ge=1, le=4)]
    manager: Agent
    workers: Annotated[tuple[Agent, ...], Field(min_length=1, max_length=5)]

    @field_validator("manager")
    @classmethod
    def _manager_matches_its_unit(cls, manager: Agent, info: ValidationInfo) -> Agent:
        unit_id = info.data.get("unit_id")
        if unit_id is not None and manager.id != f"{unit_id}0":
            raise ValueError(f"the manager of unit {unit_id} has id '{unit_id}0', not {manager.id!r}")
        return manager

    @field_validator("workers")
    @classmethod
    def _workers_match_their_unit(cls, workers: tuple[Agent, ...], info: ValidationInfo) -> tuple[Agent, ...]:
        unit_id = info.data.get("unit_id")
        allowed = {f"{unit_id}{number}" for number in range(1, 6)}
        for worker in workers:
            if unit_id is not None and worker.id not in allowed:
                raise ValueError(
                    f"workers of unit {unit_id} have ids '{unit_id}1' to '{unit_id}5', not {worker.id!r}"
                )
        _refuse_twins("worker id", [worker.id for worker in workers])
        return workers

    @property
    def window(self) -> str:
        """The name of the unit's tmux window."""
        return UNIT_WINDOWS[self.unit_id]

    @property
    def members(self) -> tuple[Agent, ...]:
        """The manager, then the workers."""
        return (self.manager, *self.workers)


class Agents(Value):
    """The whole team."""

    meta_manager: Agent | None = None
    units: Annotated[tuple[Unit, ...], Field(min_length=1, max_length=4)]

    @field_validator("meta_manager")
    @classmethod
    def _meta_manager_is_00(cls, agent: Agent | None) -> Agent | None:
        if agent is not None and agent.id != META_ID:
            raise ValueError(f"the meta manager has id '{META_ID}', not {agent.id!r}")
        return agent

    @field_validator("units")
    @classmethod
    def _units_differ(cls, units: tuple[Unit, ...]) -> tuple[Unit, ...]:
        _refuse_twins("unitId", [str(unit.unit_id) for unit in units])
        return units


class RunConfig(Value):
    """What POST /runs takes: a team, and where it works."""

    agents: Agents
    session_mode: Mode | None = None

    def windows(self) -> Iterator[tuple[str, tuple[Agent, ...]]]:
        """Each window with its agents: the meta manager first, then the units by number."""
        if self.agents.meta_manager is not None:
            yield META_WINDOW, (self.agents.meta_manager,)
        for unit in sorted(self.agents.units, key=lambda unit: unit.unit_id):
            yield unit.window, unit.members

    def members(self) -> dict[str, Agent]:
        """Every agent by id, in the order of the panes."""
        return {agent.id: agent for _, agents in self.windows() for agent in agents}

    def as_received(self) -> dict[str, Any]:
        """The configuration as its sender wrote it, without the defaults that were filled in."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Message(Value):
    """Text for one agent; `submit` presses Enter after it."""

    target: AgentId
    text: Text
    submit: StrictBool = True


def _refuse_twins(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} {value!r} is used twice")


def split_command(command: str) -> list[str]:
    """The words of a command line, split as a shell would, without one; ValueError when it has none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None
    if not words:
        raise ValueError("must name a program")
    return words


def load_config(document: str | bytes | dict[str, Any]) -> RunConfig:
    """A configuration from JSON text or its parsed form; InvalidConfiguration names the first bad field."""
    try:
        if isinstance(document, dict):
            return RunConfig.model_validate(document)
        return RunConfig.model_validate_json(document)
    except ValidationError as error:
        field, reason = first_problem(error)
        raise InvalidConfiguration(field or "configuration", reason) from error


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The first field that breaks a rule, and the rule."""
    first = error.errors(include_url=False, include_context=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")


def default_team(session_mode: Mode | None = None) -> RunConfig:
    """A meta manager and three units of a manager and three workers."""
    units = tuple(_default_unit(number) for number in (1, 2, 3))
    meta = Agent(id=META_ID, prompt=_default_prompt(META_ID, "meta manager of the team"))
    team = Agents(meta_manager=meta, units=units)
    chosen = {} if session_mode is None else {"session_mode": session_mode}
    return RunConfig(agents=team, **chosen)


def _default_unit(number: int) -> Unit:
    name = UNIT_WINDOWS[number]
    manager = Agent(id=f"{number}0", prompt=_default_prompt(f"{number}0", f"manager of the {name} unit"))
    workers = tuple(
        Agent(
            id=f"{number}{worker}", prompt=_default_prompt(f"{number}{worker}", f"worker of the {name} unit")
        )
        for worker in (1, 2, 3)
    )
    return Unit(unit_id=number, manager=manager, workers=workers)


def _default_prompt(agent_id: str, role: str) -> str:
    return f"You are agent {agent_id}, {role}. Your folder holds your role; wait for messages."
