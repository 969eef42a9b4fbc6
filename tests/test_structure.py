"""The tree is the data flow: calls go down, and so do imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the doors down to the values: a module imports only from the lines below its own. A name
# stands for a module or for a whole package; "" is the package's own __init__.
LAYERS = {
    "mas": [
        ["__main__"],
        ["cli"],
        ["service", "selection", "printing"],
        ["client", "agent"],
        [""],
        ["runs"],
        ["answers", "recovery"],
        ["lifecycle"],
        ["agents", "messages"],
        ["registry"],
        ["workspace"],
        ["tmux", "processes"],
        ["locks"],
        ["supervisor"],
        ["keys", "snippets"],
        ["settings"],
        ["config"],
        ["errors"],
        ["templates"],
    ],
    "sandbox": [
        ["cli"],
        ["files_cli", "repl", "retention_cli", "state_cli"],
        ["session_cli", "doctor"],
        ["invocation"],
        ["amounts", "bars", "interrupts", "printing", "statements"],
        [""],
        ["sessions"],
        ["sandbox"],
        ["lasting"],
        ["interpreter"],
        ["images", "snapshots"],
        ["wasm"],
        ["guests"],
        ["cache", "progress", "scratch"],
        ["replacement"],
        ["tree"],
        ["policy", "result"],
        ["events"],
        ["errors"],
    ],
}
# Each outside thing has one place that touches it.
OWNERS = {"wasmtime": "sandbox.wasm", "fastapi": "mas.service", "uvicorn": "mas"}

MODULES = sorted((ROOT / "src").rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path):
    """Every module that a file names in an import, whenever it would run."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def layer_of(name):
    """The package, the number of its layer and the name in it that a dotted name belongs to."""
    package, _, rest = name.partition(".")
    first = rest.split(".")[0]
    for number, names in enumerate(LAYERS[package]):
        if first in names:
            return package, number, first
    return None


def layer_of_import(name):
    """Like layer_of, where a last part that is no module is a name from the package's __init__."""
    package = name.split(".")[0]
    return layer_of(name) or layer_of(package)


def shown(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_every_module_has_its_place_in_the_tree(path):
    assert layer_of(module_name(path)), "give it a line in LAYERS"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_a_module_imports_only_what_is_below_it(path):
    package, own_number, own_name = layer_of(module_name(path))
    for name in imported_names(path):
        if name.split(".")[0] not in LAYERS:
            continue
        other_package, number, other_name = layer_of_import(name)
        if other_package != package:
            assert (package, other_package) == ("mas", "sandbox"), f"{name} is above"
        elif other_name != own_name:
            assert number > own_number, f"{name} is above or beside"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_each_outside_thing_has_one_importer(path):
    own = module_name(path)
    for name in imported_names(path):
        owner = OWNERS.get(name.split(".")[0], own)
        assert f"{own}.".startswith(f"{owner}."), f"only {owner} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_a_modules_docstring_begins_with_one_sentence(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    sentence = docstring.partition("\n\n")[0]
    assert re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", sentence), docstring


@pytest.mark.parametrize("package", ["sandbox", "sandbox.sessions"])
def test_all_is_sorted_and_names_exactly_what_is_public(package):
    module = importlib.import_module(package)
    named = {name for name, value in vars(module).items() if not inspect.ismodule(value)}
    public = {name for name in named if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}
    assert list(module.__all__) == sorted(public)


def test_no_file_names_a_place_on_a_machine():
    # Attacks and seeds name such places on purpose; this pattern is built so as not to find itself.
    tops = (r"home/\w+", r"Users/\w+", "root", r"work/\w+")
    place = re.compile("|".join(r"(?<![\w.})$/])/" + top + "/" for top in tops))
    found = [
        f"{name}: {match}"
        for name in tracked_files()
        if not name.startswith(("tests/escape/", "tests/seeds/"))
        for match in place.findall((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []


def tracked_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
