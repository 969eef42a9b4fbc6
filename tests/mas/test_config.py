from __future__ import annotations

import json

import pytest

from mas.config import RunConfig, default_team, load_config, split_command
from mas.errors import InvalidConfiguration


def agent(agent_id, **more):
    return {"id": agent_id, "prompt": "x", **more}


def unit(number, workers=(1,), **more):
    members = [agent(f"{number}{worker}") for worker in workers]
    return {"unitId": number, "manager": agent(f"{number}0"), "workers": members, **more}


def config(*units, **more):
    return {"agents": {"units": list(units), **more}}


SMALLEST = config(unit(1))
LARGEST = config(*(unit(number, (1, 2, 3, 4, 5)) for number in (1, 2, 3, 4)), metaManager=agent("00"))


@pytest.mark.parametrize("document", [SMALLEST, LARGEST, {**SMALLEST, "sessionMode": "isolated"}])
def test_a_valid_configuration_is_kept_as_it_was_received(document):
    assert load_config(document).as_received() == document
    assert load_config(json.dumps(document)).as_received() == document


def test_agents_come_by_window_the_meta_manager_first():
    windows = [(name, [one.id for one in agents]) for name, agents in load_config(LARGEST).windows()]
    assert windows == [
        ("meta", ["00"]),
        ("design", ["10", "11", "12", "13", "14", "15"]),
        ("development", ["20", "21", "22", "23", "24", "25"]),
        ("business", ["30", "31", "32", "33", "34", "35"]),
        ("unit4", ["40", "41", "42", "43", "44", "45"]),
    ]


def test_the_default_team_is_a_meta_manager_and_three_units_of_four():
    assert list(default_team().members()) == ["00"] + [
        f"{unit}{member}" for unit in (1, 2, 3) for member in range(4)
    ]
    assert "sessionMode" not in default_team().as_received()
    assert default_team("isolated").session_mode == "isolated"


BAD = {
    "no agents": ({}, "agents"),
    "no units": (config(), "agents.units"),
    "five units": (config(*(unit(1) for _ in range(5))), "agents.units"),
    "the same unit twice": (config(unit(1), unit(1)), "agents.units"),
    "unit 0": (config(unit(0)), "agents.units.0.unitId"),
    "unit 5": (config(unit(5)), "agents.units.0.unitId"),
    "a unit as text": (config({**unit(1), "unitId": "1"}), "agents.units.0.unitId"),
    "a unit as truth": (config({**unit(1), "unitId": True}), "agents.units.0.unitId"),
    "no workers": (config(unit(1, ())), "agents.units.0.workers"),
    "six workers": (config(unit(1, range(1, 7))), "agents.units.0.workers"),
    "the same worker twice": (config(unit(1, (1, 1))), "agents.units.0.workers"),
    "a worker of another unit": (config({**unit(1), "workers": [agent("21")]}), "agents.units.0.workers"),
    "a worker with a manager's id": (config({**unit(1), "workers": [agent("10")]}), "agents.units.0.workers"),
    "a worker beyond the fifth": (config({**unit(1), "workers": [agent("16")]}), "agents.units.0.workers"),
    "a manager of another unit": (config({**unit(1), "manager": agent("20")}), "agents.units.0.manager"),
    "a manager with a worker's id": (config({**unit(1), "manager": agent("11")}), "agents.units.0.manager"),
    "a meta manager that is not 00": (config(unit(1), metaManager=agent("10")), "agents.metaManager"),
    "an id of one digit": (config(unit(1), metaManager=agent("0")), "agents.metaManager.id"),
    "an id as a number": (config(unit(1), metaManager=agent(0)), "agents.metaManager.id"),
    "an id with a newline": (config(unit(1), metaManager=agent("00\n")), "agents.metaManager.id"),
    "digits of another script": (config(unit(1), metaManager=agent("\u0660\u0660")), "agents.metaManager.id"),
    "no prompt": (config(unit(1), metaManager={"id": "00"}), "agents.metaManager.prompt"),
    "an empty prompt": (config(unit(1), metaManager={"id": "00", "prompt": ""}), "agents.metaManager.prompt"),
    "a long prompt": (
        config(unit(1), metaManager=agent("00") | {"prompt": "x" * 5001}),
        "agents.metaManager.prompt",
    ),
    "a prompt that steers the terminal": (
        config(unit(1), metaManager=agent("00") | {"prompt": "\x1b[201~"}),
        "agents.metaManager.prompt",
    ),
    "an empty command": (config(unit(1), metaManager=agent("00", command="")), "agents.metaManager.command"),
    "a blank command": (config(unit(1), metaManager=agent("00", command=" ")), "agents.metaManager.command"),
    "an open quote": (
        config(unit(1), metaManager=agent("00", command="sh -c 'x")),
        "agents.metaManager.command",
    ),
    "a command with a NUL": (
        config(unit(1), metaManager=agent("00", command="a\0b")),
        "agents.metaManager.command",
    ),
    "an unknown field": ({**SMALLEST, "extra": 1}, "extra"),
    "an unknown field of an agent": (config(unit(1), metaManager=agent("00", x=1)), "agents.metaManager.x"),
    "an unknown field of a unit": (config(unit(1, x=1)), "agents.units.0.x"),
    "an unknown mode": ({**SMALLEST, "sessionMode": "shared"}, "sessionMode"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_configuration_is_refused_with_the_field_named(name):
    document, field = BAD[name]
    with pytest.raises(InvalidConfiguration) as refused:
        load_config(document)
    assert refused.value.field == field


def test_text_that_is_no_json_is_refused():
    with pytest.raises(InvalidConfiguration, match=r"^configuration: Invalid JSON"):
        load_config("{")


def test_prompts_count_characters_not_bytes():
    document = config(unit(1), metaManager=agent("00") | {"prompt": "🦀" * 5000})
    assert load_config(document).members()["00"].prompt == "🦀" * 5000


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_config(SMALLEST).session_mode = "legacy"


def test_a_command_is_split_without_a_shell():
    assert split_command("run 'a b' $HOME $(x) ;") == ["run", "a b", "$HOME", "$(x)", ";"]


def test_the_schema_says_what_is_allowed():
    schema = RunConfig.model_json_schema()["$defs"]
    assert schema["Agent"]["properties"]["prompt"]["maxLength"] == 5000
    assert schema["Agent"]["additionalProperties"] is False
