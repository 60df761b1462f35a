# Every target works from a clean clone: it creates .venv and installs the project there when that has not been done.
# Another interpreter: make test PYTHON=python3.12     An existing environment: make test VENV=path/to/venv
PYTHON ?= python3
VENV ?= .venv
DEMO_RUN ?= runs/demo
WORKERS ?= auto
BIN := $(VENV)/bin
STAMP := $(VENV)/.gpurl-installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint docs gpu-check bench clean

help:
	@echo "make demo       train CartPole-v1, evaluate it in Gymnasium's own environment, draw its learning curve"
	@echo "make test       run the test suite (no GPU needed)"
	@echo "make lint       ruff check, ruff format --check, pyright"
	@echo "make docs       build the documentation site into build/site; any broken link or reference is an error"
	@echo "make bench      environment and training throughput on this machine"
	@echo "make gpu-check  everything that needs a CUDA device, in less than 8 minutes, into benchmarks/results"
	@echo "make clean      remove .venv and build leftovers (runs/ is kept)"

install: $(STAMP)

$(STAMP): pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gpurl needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1); name a newer one: make PYTHON=python3.12 install"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e ".[dev,docs,render,watch]"
	@touch $@

demo: $(STAMP)
	rm -rf $(DEMO_RUN)
	$(BIN)/gpurl train CartPole-v1 --run-dir $(DEMO_RUN)
	$(BIN)/gpurl eval $(DEMO_RUN) --episodes 100 --on gymnasium --json > $(DEMO_RUN)/demo-eval.json
	$(BIN)/python -m benchmarks.require $(DEMO_RUN)/demo-eval.json --return-at-least 475
	$(BIN)/gpurl plot $(DEMO_RUN) --out $(DEMO_RUN)/learning-curve.png

# A process for each core, which steal tests from each other's end of the list: those of a file mostly stay together, with what
# it has compiled. More than four would compile the same things at the same time. In one process: make test WORKERS=0
test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Works from the source tree without an installation: with $(PYTHON) where that was named, else with the virtual environment
# where there is one, else with python3.
CHECK_PYTHON = $(if $(filter file default,$(origin PYTHON)),$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)),$(PYTHON))

gpu-check:
	@$(CHECK_PYTHON) -m benchmarks.gpu_check

bench: $(STAMP)
	$(BIN)/gpurl bench env
	$(BIN)/gpurl bench train

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
