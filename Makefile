# Two commands: "make demo" sets up and runs the main job, "make test" sets up and runs the tests.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check clean

demo: .venv/installed
	$(BIN)/fedsys compare examples/quickstart.toml

test: .venv/installed-dev check
	$(BIN)/python -m pytest -n 2

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

clean:
	rm -rf .venv runs

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ .venv/installed
