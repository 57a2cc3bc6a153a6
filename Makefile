# The recipes that people and CI type. `make help` lists them. Everything stays in the checkout: .venv, build, .cache.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# In CI, warnings are errors.
PRESET ?= $(if $(CI),ci,release)
JOBS ?= $(shell nproc)
VENV := .venv
PYTHON_VENV := $(VENV)/bin/python
# Files of tests lie in memory, where there is room.
TESTS_IN = TMPDIR="$$(tools/test_folder.sh $@)"
# What starts in the background of a script ignores Ctrl-C, what nohup starts ignores hang-ups, and so would the programs whose end by a
# signal is tested. One process more than there are cores: tests wait for a fourth of their time.
# Packages bring plugins that no test needs, and pytest rewrites the asserts of all that such a package has (zarr, twinrun itself).
PLUGINS = --disable-plugin-autoload -p xdist -p hypothesispytest
PYTEST = $(TESTS_IN) env --default-signal $(PYTHON_VENV) -m pytest $(PLUGINS) -n $(shell expr $(JOBS) + 1) --dist worksteal
BIN := build/$(PRESET)/bin
FUZZ_SECONDS ?= 60
HUNT_SECONDS ?= 3600
HUNT_ARGS ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

# Caches and temporary files of all tools. A PIP_CACHE_DIR of the user's own is respected.
export PIP_CACHE_DIR ?= $(CURDIR)/.cache/pip
export TMPDIR := $(CURDIR)/.cache/tmp
export XDG_CACHE_HOME := $(CURDIR)/.cache
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
# Test modules that pytest has rewritten are kept beside them, for the other processes and for the next run.
unexport PYTHONDONTWRITEBYTECODE
# The order of Python's sets is a random input of tests too: the same each time.
export PYTHONHASHSEED ?= 0
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# Some tests wait most of their time: for a lock, or for a process. A job of MPI ranks counts as two, and two cores take two of them.
export CTEST_PARALLEL_LEVEL ?= $(shell expr $(JOBS) + 2)
# Where the demo and the tests find the simulation.
export TWINRUN_MINIHACC ?= $(CURDIR)/$(BIN)/minihacc
# Where the studies' tests find the kernel that they run; there where CMake found an MPI.
export TWINRUN_HACCIO ?= $(CURDIR)/$(BIN)/haccio
# What simulated machines are fed with.
export TWINRUN_SIMULATE_FLOWS ?= $(CURDIR)/$(BIN)/simulate_flows
# The library that plays a device, for tests in Python.
export TWINRUN_FAKE_DEVICE_LIBRARY ?= $(CURDIR)/build/$(PRESET)/tests/libtwinrun_fake_device.so
# The example that compares from C.
export TWINRUN_COMPARE_C ?= $(CURDIR)/$(BIN)/compare_c
# Plays a device, where there is none.
export TWINRUN_FAKE_DEVICE ?= $(CURDIR)/build/$(PRESET)/tests/libtwinrun_fake_device.so

.PHONY: help setup demo test test-cpp test-python test-mpi test-torch test-jax test-backends test-asan test-tsan coverage bench fuzz hunt lint format \
        layers build clean wheels test-wheels docs

help: ## List the recipes
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	    || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' Makefile

setup: ## Install what is missing (apt as root, PyPI into .venv) and build the Python package
	@PRESET=$(PRESET) tools/setup.sh tests

# Without what only tests need.
demo: ## Run a simulation twice, compare the runs, show where they part
	@PRESET=$(PRESET) tools/setup.sh
	@$(VENV)/bin/twinrun demo $(DEMO_ARGS)

build: setup
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build --preset $(PRESET)

# pytest comes last in every case (make -j too), so that its summary is the last line.
# Meanwhile pytest collects, so that its processes need not all rewrite the asserts of the same modules: jobs of MPI leave a core idle.
test: COLLECT = $(PYTHON_VENV) -m pytest $(PLUGINS) --collect-only -q
test: layers test-cpp ## Run all tests: C++, saved fuzz inputs, what may include what, Python
	@$(PYTEST) $(PYTEST_ARGS)

test-cpp: build
	@$(TESTS_IN) ctest --preset $(PRESET)
	@$(PYTHON_VENV) tools/hunt.py --bin $(BIN) --replay
	@$(PYTHON_VENV) tools/check_kernels.py build/$(PRESET)/src
	@$(PYTHON_VENV) tools/check_alone.py build/$(PRESET) src/
	@$(if $(COLLECT),$(COLLECT) >/dev/null 2>&1 & )$(TESTS_IN) tools/mpi_matrix.sh build/$(PRESET) other; status=$$?; wait; exit $$status

layers: setup ## Check that every folder includes and imports only what it may
	@$(PYTHON_VENV) tools/check_layers.py
	@tools/lint_imports.sh

test-python: build
	@$(PYTEST) $(PYTEST_ARGS)

test-asan: setup ## Run the C++ tests with the address and undefined-behaviour sanitizers
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan
	@$(TESTS_IN) ctest --preset asan

test-tsan: setup ## Run the C++ tests with the thread sanitizer
	@cmake --preset tsan >/dev/null
	@tools/without_aslr.sh cmake --build --preset tsan
	@$(TESTS_IN) tools/without_aslr.sh ctest --preset tsan

test-mpi: build ## Run the tests of aggregation with every MPI that can be had (wheels, Debian's) and in a Slurm, 15 minutes
	@tools/mpi_matrix.sh build/$(PRESET)

test-torch: build ## Run the tests that need PyTorch, with that of PyPI (several GB, into build/torch)
	@tools/test_framework.sh torch $(JOBS) $(PYTEST_ARGS)

test-jax: build ## Run the tests that need JAX, with that of PyPI (0.7 GB, into build/jax)
	@tools/test_framework.sh jax $(JOBS) $(PYTEST_ARGS)

test-backends: build ## Run the C++ tests once with each instruction set that this processor has
	@tools/test_backends.sh build/$(PRESET)

coverage: ## Run the C++ tests and print which lines they reach
	@tools/setup.sh tests coverage
	@cmake --preset coverage >/dev/null
	@cmake --build --preset coverage
	@ctest --preset coverage
	@$(VENV)/bin/gcovr --root . --filter src/ build/coverage

bench: build ## Run the benchmarks, about 10 minutes (BENCH_ARGS=--quick: one minute; '--write docs/benchmark-tables.md' keeps them)
	@$(PYTHON_VENV) bench/compare_bench.py --programs $(BIN) $(BENCH_ARGS)
	@for program in $$(ls $(BIN)/bench_* | grep -v '/bench_build$$'); do echo "== $${program##*/}"; $$program || exit; done

fuzz: ## Fuzz every target for FUZZ_SECONDS (60) seconds
	@tools/setup.sh fuzz
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz
	@tools/fuzz.sh build/fuzz/bin $(FUZZ_SECONDS)

hunt: build ## Run the randomized tests on fresh seeds for HUNT_SECONDS (an hour), and keep what they find in tests/hunted
	@$(PYTHON_VENV) tools/hunt.py --bin $(BIN) --seconds $(HUNT_SECONDS) $(HUNT_ARGS)

wheels: ## Build what is published, into build/dist: wheels for manylinux_2_28 (x86-64), and the source distribution
	@tools/setup.sh packages
	@tools/wheels.sh

test-wheels: ## Test the wheels of build/dist in bare trees of Debian 12 and 13 (root; debootstrap), without a compiler
	@tools/test_wheels.sh

docs: ## Check the docs' English, and build their site into build/site; nothing is fetched, broken links are errors
	@PRESET=$(PRESET) tools/setup.sh docs
	@$(PYTHON_VENV) tools/docs_english.py
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_VENV) -m mkdocs build
	@$(PYTHON_VENV) tools/docs_offline.py build/site

lint: ## Check format, what may include what, and common mistakes
	@PRESET=$(PRESET) tools/setup.sh tests lint
	@cmake --preset $(PRESET) -B build/lint -DTWINRUN_UNITY=OFF >/dev/null
	@tools/lint.sh build/lint

format: ## Format C++ and Python sources in place
	@tools/setup.sh lint
	@tools/lint.sh --fix

clean: ## Remove all build products, the environment and the caches
	rm -rf build .venv .cache
