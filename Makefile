# Relume. Two commands need nothing but Python 3.11+, git, make and root or sudo: `make demo` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/sh
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
# Extra words for pip, such as the index of CPU builds of torch (plain pip may bring a CUDA build of several GB).
PIP_ARGS ?=

.PHONY: help venv packages check format test demo campaign clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

packages:
	@sh deploy/setup/packages.sh lab test browser

$(VENV)/.ready: pyproject.toml $(wildcard constraints/*.txt) deploy/setup/venv.sh | packages
	@PIP_ARGS="$(PIP_ARGS)" sh deploy/setup/venv.sh $(VENV)
	@touch $@

venv: $(VENV)/.ready  ## the development environment in .venv

check: venv  ## lint, types, import contracts and the pure tests (about 2 minutes)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(PY) -m pytest -q -n 2 -m pure tests

format: venv
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test: venv  ## every test lane: pure, databases, scenarios, torch, real Slurm, real browser
	$(SUDO) $(PY) tests/lanes.py $(ARGS)

demo: venv  ## a real Slurm, a real training job, a killed node, the recovery (ARGS=--once: unattended)
	$(SUDO) $(PY) -m deploy.demo $(ARGS)

campaign: venv  ## the long lanes: every kill point, repeated recoveries (ARGS to choose)
	$(SUDO) $(PY) tests/campaign.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
