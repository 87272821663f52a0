# On a machine with python3 (3.11 or later), make and gcc:
#
#   make demo        ResNet-50 trained in half of its memory
#   make picture     the same, and draws the README's picture (on a quiet machine)
#   make test        the test suite
#   make test-slow   the tests that take minutes
#   make check       style, types, layers, a smoke test: about a minute
#   make bench       the benchmarks
#   make clean       remove the environment and all caches in this folder
#
# The environment is .venv, made once and again when pyproject.toml changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.lowtide-installed
# Installed by name first: the plain requirement would pull a build with gigabytes of CUDA libraries.
TORCH  ?= torch==2.13.0

SMOKE  := tests/test_public_names.py tests/test_docs_errors.py tests/cli tests/report tests/ir/test_text.py tests/sim/test_check.py

.PHONY: demo picture test test-slow check format bench clean install
.DEFAULT_GOAL := test

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lowtide needs Python 3.11 or later; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@# What the planner compiles on first use, so that the first plan does not wait for it.
	$(BIN)/python -c 'from lowtide.bench.warm import warm_up; warm_up()'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

picture: $(STAMP)
	$(BIN)/python examples/demo.py --picture docs/pictures/resnet50.svg --rounds 7

test: $(STAMP)
	$(BIN)/python -m pytest

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@# Every test file can be imported, also those whose tests the smoke test leaves out.
	$(BIN)/python -m pytest --collect-only --quiet --quiet > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }
	$(BIN)/python -m pytest -x $(wildcard $(SMOKE))

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@found=; for file in benchmarks/*.py; do test -f "$$file" || continue; found=1; echo "== $$file"; $(BIN)/python "$$file" || exit 1; done; \
	  test -n "$$found" || { echo "no benchmarks/ yet: running the demo, which is one"; $(BIN)/python examples/demo.py; }

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
