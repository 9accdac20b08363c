# Everything a contributor runs. The first use of any target makes $(VENV) with the pinned versions in it.
#
#   make train    set up, then train PPO on CartPole     (ARGS='...' other arguments for bin/train)
#   make test     set up, then run the fast tests        (PYTEST_ARGS='...' for pytest)
#   make check    lint, types and fast tests: what a change must pass
#   make bench    beside RLlib and Stable-Baselines3, after `make peers`     (ROW=... some rows, BENCH_ARGS=--quick)
#
#   JOBS=N        tests in N processes (2; about 4 GB of memory each)
#   VENV=DIR      another place for the virtual environment
#   PYTHON=EXE    the Python that makes it (3.11 to 3.13, the versions that constraints.txt is for)
#   EXTRAS=...    which extras of setup.cfg go into it

SHELL := /bin/bash
VENV ?= .venv
EXTRAS ?= tf,tfp,torch,onnx,atari,profile,http,minari,dev
PYTHON ?= $(shell for exe in python3.11 python3; do $$exe -c 'import venv' >/dev/null 2>&1 && echo $$exe && break; done)
PY := $(VENV)/bin/python
STAMP := $(VENV)/.polylib-installed
ARGS ?= --algo PPO --env CartPole-v1 --stop '{"episode_reward_mean": 150}'
PYTEST_ARGS ?=
JOBS ?= 2
ROW ?=
BENCH_ARGS ?=
# By its exact version and first: the later step then keeps the build (CPU or CUDA) that is there.
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(PY) -m pip --disable-pip-version-check --quiet

.PHONY: help venv train test learn lint types check format peers bench clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

venv: $(STAMP)

$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (the first time takes a minute or more) ..."
	@test -n "$(PYTHON)" || { echo "No python3 with the venv module found: name one with PYTHON=..." >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "$(VENV) has $$($(PY) -V), constraints.txt is for Python 3.11 to 3.13: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PIP) install "$(TORCH)"
	@$(PIP) install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

train: $(STAMP)
	@$(PY) bin/train $(ARGS)

test: $(STAMP)
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

learn: $(STAMP)
	@$(PY) -m pytest -m learning $(PYTEST_ARGS)

lint: $(STAMP)
	@$(PY) -m ruff check .

types: $(STAMP)
	@$(PY) -m mypy

# The virtual environments of what polylib is measured against, in $$POLYLIB_PEERS or ~/.cache/polylib-peers.
peers:
	@PYTHON="$(PYTHON)" benchmarks/peers/setup.sh

bench: $(STAMP)
	@$(PY) benchmarks/bench.py $(if $(ROW),--row $(ROW)) $(BENCH_ARGS)

format: $(STAMP)
	@$(PY) -m ruff check --fix .

check: lint types test

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find polylib bin tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
