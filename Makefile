# Two commands do everything on a machine that has Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
WORKERS ?= 2
export PYTHONDONTWRITEBYTECODE :=  # hundreds of tests start processes, which would compile everything each time

# What only the full gate runs; pyproject.toml says what these marks mean.
FULL_ONLY := slow or flower or hf or lightning or postgres or browser or docs

.PHONY: help demo test test-full lint types format browser bench tables clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Privy Purse needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP) -e '.[report,training]'
	@touch $@

$(VENV)/.dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run  ## train on real people with three consent levels, few and many, compare, and write a report
	$(BIN)/privypurse demo

test: lint types $(VENV)/.dev  ## the fast gate: lint, types, and every test but the long ones (minutes)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --disable-warnings -m "not ($(FULL_ONLY))"

test-full: lint types $(VENV)/.dev  ## the full gate: everything, for merging and releases (about an hour)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --disable-warnings

lint: $(VENV)/.dev  ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

browser:  ## Debian's chromium for tests of pages, where this may install it; without one they are skipped
	@command -v chromium >/dev/null || tools/debian chromium
	@command -v chromium || echo "Chromium is not here and could not be installed: pages are tested without a browser" >&2

bench: $(VENV)/.dev  ## speed of planning, training, accounting and questions beside the peers, and of the ledger
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.charging
	$(BIN)/python -m benchmarks.trajectories
	$(BIN)/python -m benchmarks.queries
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.ledger_plans
	$(BIN)/python -m benchmarks.report

tables: $(VENV)/.dev  ## the papers' tables: the headline is what the results say, and every table runs quickly
	$(PIP) -e '.[reproductions]'
	$(BIN)/python -m reproductions check
	for table in reproductions/tables/*.toml; do $(BIN)/python -m reproductions run $$table --quick --out results/quick || exit 1; done

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
