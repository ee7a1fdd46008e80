# Every target sets up what it needs: the virtual environment, the native libraries, the package.
#   make demo            make test            make test PYTHON=python3.10
PYTHON ?= python3.11
VENV   ?= .venv
# The last numpy with which mxnet 1.9.1 works by itself: the environment that results and tests refer to.
NUMPY  := 1.23.5
# What echo.compat is for, as PYTHON:NUMPY.
COMPAT ?= python3.11:1.24.4 python3.11:1.26.4 python3.12:1.26.4
BIN    := $(VENV)/bin

# A compiler that appears, or goes away, calls for a new installation; so does a change in what is built.
COMPILERS := $(if $(filter default,$(origin CXX)),c++ g++ clang++,$(CXX))
COMPILER  := $(firstword $(shell for name in $(COMPILERS); do command -v $$name; done; true))
INSTALLED := $(VENV)/.installed-$(if $(COMPILER),native,fallback)
NATIVE    := $(shell find echo/native -name '*.cc' -o -name '*.h' 2>/dev/null)
BENCHES   := $(shell grep -l '^if __name__ ==' benchmarks/*.py 2>/dev/null)

.PHONY: help demo test test-all test-compat check bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(INSTALLED)  ## train a translation model with and without echo, side by side
	@$(BIN)/python examples/demo_nmt.py

test: $(INSTALLED)  ## run the tests, but for the slow ones and those that need a GPU
	@echo "== tests"
	@$(BIN)/python -m pytest -m "not slow and not gpu"

test-all: $(INSTALLED)  ## run all tests that this machine can run
	@echo "== all tests"
	@$(BIN)/python -m pytest

test-compat:  ## train under newer versions of numpy and Python, each in an environment of its own
	@tests/compat/check.sh $(COMPAT)

check: $(INSTALLED)  ## ruff, mypy, then make test
	@echo "== ruff"
	@$(BIN)/ruff check .
	@echo "== mypy (up to a minute the first time)"
	@$(BIN)/mypy --strict echo
	@$(MAKE) --no-print-directory test

bench: $(INSTALLED)  ## run every benchmark; results go to benchmarks/results/
	@$(if $(BENCHES),,echo "there is no script in benchmarks/" >&2; exit 1)
	@set -e; for name in $(basename $(notdir $(BENCHES))); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

clean:  ## remove the virtual environment, builds and caches
	rm -rf $(VENV) .venv-compat build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml CMakeLists.txt $(NATIVE) echo/startup.py $(wildcard startup/*)
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) with its venv module is needed: sudo apt install python3.11 python3.11-venv (or PYTHON=..., 3.10 or 3.11)" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))' || { \
	  echo "error: mxnet 1.9.1 and the tools of the tests need Python 3.10 or 3.11, got $$($(PYTHON) --version)" >&2; exit 1; }
	@rm -f $(VENV)/.installed-*
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "== creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@$(if $(COMPILER),,echo "note: no C++ compiler, so echo runs in fallback mode (attributes only); to change that: sudo apt install g++")
	@echo "== installing mxnet 1.9.1 and the other requirements, building echo (some minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' 'numpy==$(NUMPY)'
	@$(BIN)/python -W ignore -c 'import mxnet' || { \
	  echo "error: mxnet does not import; where a library is missing: sudo apt install libgomp1 libquadmath0" >&2; exit 1; }
	@touch $@
