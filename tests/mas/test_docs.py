import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mas.md"
EXAMPLE = re.compile(r"^```sh\n(.*?)^```\n(?:```output\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
MARK = "=== the next example ==="


def test_the_examples_print_what_the_page_shows(world):
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) > 8
    world.env.pop("MAS_AGENT_COMMAND")  # the page is about the built-in agents
    with world.server() as url:
        script = f"\necho {MARK!r}\n".join(code for code, _ in examples).replace("http://127.0.0.1:8765", url)
        result = world.run("bash", "-euo", "pipefail", "-c", script)
    printed = result.stdout.split(f"{MARK}\n")
    for (code, expected), output in zip(examples, printed, strict=True):
        assert re.fullmatch(_pattern(expected), output), f"{code}\nprinted\n{output}\ninstead of\n{expected}"


def _pattern(expected):
    return ".*".join(re.escape(part) for part in expected.split("..."))


def test_every_setting_and_command_is_on_the_page():
    from mas.cli import app
    from mas.settings import Settings

    page = PAGE.read_text()
    settings = [f"MAS_{name.upper()}" for name in Settings.model_fields]
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert [name for name in settings if f"`{name}`" not in page] == []
    assert [name for name in commands if f"`mas {name}" not in page] == []
