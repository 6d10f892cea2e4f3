# SPDX-License-Identifier: Apache-2.0
# make gates   the gates on the cpu lane, then their verdicts    make test   lint, types and the test suite
# make lock    new versions into requirements/                   make clean  everything that these leave behind
# make test-engines  test-sessions  test-faults  test-rules   the long tests: docs/testing.md says who runs which, and when
# make test-legacy   the candidate's contract on the legacy Intel stack, whose torch is large
# make mutation      asks the tests of each changed function that judges: docs/mutation-testing.md

PYTHON ?= python3
# More for pip, such as --extra-index-url for PyTorch's CPU wheel index (see requirements/cpu.txt).
PIP_OPTIONS ?=

BIN := .venv/bin
PACKAGES := .venv/packages.stamp
PROJECT := .venv/project.stamp
VLLM_SOURCES := wheels/vllm-0.26.0 wheels/vllm-0.33.0

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: gates test test-engines test-sessions test-faults test-rules test-legacy mutation static vllm-sources lock clean
.DELETE_ON_ERROR:

# A gate that does not pass ends the run; make prints its exit code and,
# as for every failed target, ends with 2 itself.
GATES := 1 2 3
CAMPAIGN := campaigns/laguna-persistent-kv-views-quick.toml
# Two ranks, so that collective breaks are in the graph; where there are fewer cores, slots share them.
CARDS := 0,1

gates: $(PROJECT)
	@status=0; \
	for gate in $(GATES); do \
	  cards=--cards=$(CARDS); [ $$gate -gt 1 ] || cards=; \
	  $(BIN)/python -m pytest --gate=$$gate --campaign=$(CAMPAIGN) --device=cpu $$cards || { status=$$?; break; }; \
	done; \
	$(BIN)/laguna verify sealed || { verified=$$?; [ $$status -ne 0 ] || status=$$verified; }; \
	exit $$status

# A file stays with one worker, which builds or runs once what its fixtures need. Files begin in their order, in which those that
# run engines come first; by itself xdist keeps files of few tests, which are these, for the end. Three keep two cores busy:
# a worker waits for a fifth of its time, for deadlines and for processes that start and end.
TESTS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 3 --dist=loadfile --no-loadscope-reorder --durations=20

test: static vllm-sources
	$(TESTS) --timeout=900 -m "kept or not (engines or sessions or faults or rules)"

# All tests with a long target's marker.
test-engines test-sessions test-faults test-rules: test-%: vllm-sources
	$(TESTS) --timeout=3600 -m $*

# The candidate's contract under the Python validator: the native check needs a torch that the legacy stack does not have.
LEGACY := .venv-legacy
LEGACY_TESTS := tests/legacy/legacy.py tests/unit/laguna_kv/test_contract.py tests/unit/laguna_kv/test_seam.py

test-legacy: $(LEGACY)/packages.stamp | wheels/vllm-0.33.0
	PYTHONPATH=src $(LEGACY)/bin/python -m pytest -p tests.legacy.without_vllm -p no:cacheprovider $(LEGACY_TESTS)

$(LEGACY)/packages.stamp: requirements/legacy.in
	$(PYTHON) -m venv --clear $(LEGACY)
	$(LEGACY)/bin/python -m pip install -q $(PIP_OPTIONS) -r requirements/legacy.in
	@touch $@

# mutmut and what makes its changes lie beside the environment, which stays the locked one.
MUTATED := laguna_kv analysis evidence
MUTMUT := build/mutation
# ASK=--all asks every function again; without it those whose body is new in tools/mutation_fates.jsonl.
ASK ?=

mutation: $(PROJECT) $(MUTMUT)/packages.stamp
	@status=0; \
	for package in $(MUTATED); do \
	  PYTHONPATH=$(MUTMUT) OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE \
	  $(BIN)/python -m tools.mutation $$package $(ASK) || status=1; \
	done; \
	exit $$status

$(MUTMUT)/packages.stamp: requirements/mutation.in | $(PROJECT)
	$(BIN)/python -m pip install -q --no-deps --target $(MUTMUT) $(PIP_OPTIONS) -r requirements/mutation.in
	@touch $@

static: $(PROJECT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/typos
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Python files of other vLLM versions, on which the candidate's classes are tested too.
vllm-sources: $(VLLM_SOURCES)

$(VLLM_SOURCES): wheels/vllm-%: | $(PROJECT)
	$(BIN)/python tools/fetch_vllm_sources.py $*

# Only with the oldest supported Python, on Linux x86_64: tools/lock.py says why.
lock: $(PACKAGES)
	$(BIN)/python tools/lock.py

$(PACKAGES): requirements/cpu.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else \
	"PYTHON: expected Python 3.11 to 3.13, found " + sys.version.split()[0] + ": run make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	@# Hashes for every file, and no dependency that is not listed: what is installed is what was locked.
	$(BIN)/python -m pip install -q --require-hashes --no-deps $(PIP_OPTIONS) \
	  -r requirements/cpu.txt -r requirements/dev.txt \
	|| { echo 'requirements/cpu.txt: pip did not install it: its head says where torch is to be had' >&2; exit 1; }
	@touch $@

$(PROJECT): $(PACKAGES) pyproject.toml setup.py src/laguna_kv/_contract.c pytest_laguna/engine/_replay_clock.c
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@# pip goes on where nothing compiles, for those who verify alone; a gate would find out after minutes.
	@for module in laguna_kv._contract pytest_laguna.engine._replay_clock; do \
	  $(BIN)/python -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$$module') is None)" || { \
	    echo "$$module: not compiled; gates need a C compiler and Python's headers: install them, then make again" >&2; \
	    exit 1; \
	  }; \
	done
	@touch $@

# sealed/ is evidence and stays.
clean:
	rm -rf .venv .venv-legacy build dist *.egg-info src/*.egg-info wheels src/laguna_kv/*.so pytest_laguna/engine/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -prune -exec rm -rf {} +
