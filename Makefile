# Everything a newcomer or CI runs. It needs Python >= 3.11, make and git, nothing else:
# the tools themselves are installed into .venv by `make setup`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Seconds after which a single test counts as hung.
TIMEOUT ?= 300

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs bench accuracy clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/'

setup: $(STAMP) ## create .venv and install numus with its development tools

# The stamp makes setup a no-op until pyproject.toml changes.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m compileall -q numus
	@touch $@

demo: setup ## train a small transformer to add numbers; writes out/addition.png
	$(BIN)/numus demo

test: lint ## everything that must hold: lint, types, layers, links, tests
	$(BIN)/python -m pytest -n 2 --timeout $(TIMEOUT)

lint: setup ## style, types, the import contract, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.links

docs: setup ## the documentation as a site; writes build/site
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/README.html"

bench: setup ## benchmarks against NumPy, PyTorch and JAX, if installed in .venv
	$(BIN)/python -m bench

accuracy: setup ## errors of the math functions; writes docs/accuracy.md
	$(BIN)/python -m tools.accuracy

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
