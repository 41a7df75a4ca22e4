# Every target makes .venv when it is missing and installs what it needs, pinned by constraints.txt.
# Needs Python 3.11 or newer and make. To choose the interpreter: make test PYTHON=/path/to/python

VENV := .venv
BIN := $(VENV)/bin

# The first of these that is 3.11 or newer and can make a virtual environment.
PYTHON_OK := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c "$(PYTHON_OK)" >/dev/null 2>&1 && echo "$$p" && break; done)

# As an absolute URL, for pip splits a plain path at its spaces. PIP_CONSTRAINT pins the build
# environment too; pip 25.3 and later read PIP_BUILD_CONSTRAINT for that.
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
export PIP_CONSTRAINT := file://$(subst $(SPACE),%20,$(CURDIR))/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Waiting OpenMP threads must sleep, not spin: spinning slows everything on shared cores.
# The tensors here are small and the tests run in several processes, so one thread each.
OMP_WAIT_POLICY ?= PASSIVE
OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY OMP_NUM_THREADS

# More for pytest, such as: make test PYTEST_ARGS="-n 0 -x tests/ops"
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist worksteal

# What needs a GPU, or is worth another run on one.
GPU_TESTS ?= tests/kernels tests/sorting tests/rewire tests/test_cuda.py tests/test_cuda_graph.py \
	tests/nn/test_compile.py lab/tests/kernels lab/tests/bench lab/tests/data/test_fixed_sets.py \
	lab/tests/attention/test_models.py lab/tests/sorting/test_networks.py lab/tests/train/test_timing.py

# More for the benchmark, such as: make bench BENCH_ARGS="--quick"
BENCH_ARGS ?=

# A browser for the tests of the report; to choose: make test-browser CHROMIUM=/path/to/chromium
CHROMIUM ?= $(shell for p in chromium chromium-browser google-chrome google-chrome-stable; do \
	command -v "$$p" && break; done)

.PHONY: help demo bench test test-browser test-kernels test-gpu check format docs dev clean distclean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "usage: make <target>"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo ## learn wires, a sort and glimpses on the CPU, and make a report of them
	$(BIN)/python -m sparsewire_lab identity --size 16 --steps 6000 --evaluate-every 100 --until 1e-6 --resume --out out
	$(BIN)/python -m sparsewire_lab sorting --data digits --places 1 --size 4 --batch 32 --steps 400 --resume --out out
	$(BIN)/python -m sparsewire_lab attention --data digits --steps 300 --evaluate-every 20 --resume --out out
	$(BIN)/python -m sparsewire_lab report out --out out/report.html

bench: $(VENV)/.bench ## measure this machine into results/bench.csv, and make docs/benchmarks.md
	$(BIN)/python -m sparsewire_lab bench --record results/bench.csv --page docs/benchmarks.md $(BENCH_ARGS)

test: $(VENV)/.dev ## run all tests, doctests included
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-kernels: $(VENV)/.kernels ## test every GPU kernel without a GPU, under Triton's interpreter
	TRITON_INTERPRET=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/kernels lab/tests/kernels

test-browser: $(VENV)/.dev ## test the report in a real Chromium, without a window
	@if [ -z "$(CHROMIUM)" ]; then \
		echo "error: Chromium is needed, and none was found (Debian: apt-get install chromium)." >&2; \
		echo "       Name one with: make test-browser CHROMIUM=/path/to/chromium" >&2; \
		exit 1; \
	fi
	CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -n 0 -m browser lab/tests/browser

test-gpu: $(VENV)/.dev ## test on a CUDA device: the kernels, the layers, captured steps, a long soak
	$(BIN)/python -m pytest -n 0 $(GPU_TESTS)

check: $(VENV)/.dev ## lint, check the format, check the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## fix what ruff can fix, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## build the documentation into site/, warnings are errors
	$(BIN)/mkdocs build --strict

dev: $(VENV)/.dev ## only make .venv, with everything for development

clean: ## remove what was built and cached, keep .venv
	rm -rf build dist site out .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## the same, and .venv
	rm -rf $(VENV)

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c "$(PYTHON_OK)"; then \
		echo "error: Python 3.11 or newer with its venv module is needed, and $(if $(PYTHON),$(PYTHON) is not that,none was found)." >&2; \
		echo "       Name one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	fi
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# One stamp for each set of requirements, renewed when they change. The lab needs the library of this clone.
$(VENV)/.demo: PARTS := . ./lab
$(VENV)/.bench: PARTS := . ./lab[keops]
$(VENV)/.dev: PARTS := .[dev] ./lab
$(VENV)/.kernels: PARTS := .[dev,kernels] ./lab
$(VENV)/.docs: PARTS := .[docs] ./lab
$(VENV)/.demo $(VENV)/.bench $(VENV)/.dev $(VENV)/.kernels $(VENV)/.docs: $(VENV)/.created pyproject.toml lab/pyproject.toml constraints.txt
	@echo "Installing $(PARTS) into $(VENV); the first time, this downloads PyTorch."
	$(BIN)/python -m pip install --quiet $(foreach part,$(PARTS),--editable "$(part)")
	@touch $@
