# `make help` lists the targets. Everything runs in .venv, which `make setup` makes. tools/dev.mk has the rarer targets.
PYTHON ?= python3
VENV ?= .venv
SKYRL_VENV ?= .venv-skyrl
DOCS_VENV ?= .venv-docs
# Without an NVIDIA GPU, torch is the CPU build (tools/make_venv.py). Another index: make setup TORCH_INDEX_URL=https://...
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
# Processes of make test: one more than two cores, since tests of servers wait; each imports all tests, in some 15 s.
WORKERS ?= 3
# Overrides for a run or a recipe: make demo ARGS="seed=2"
ARGS ?=

BIN := $(VENV)/bin
XP := $(BIN)/python -m xp
# Makes an environment with torch and, by --lock, the packages of a lock: $(call venv,DIRECTORY)
venv = $(PYTHON) tools/make_venv.py $(1) "$(TORCH)" $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
editable = $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
# Some images set PYTHONDONTWRITEBYTECODE: hundreds of processes would then compile torch and transformers, each for itself.
bytecode = env --unset=MAKEFLAGS --unset=PYTHONDONTWRITEBYTECODE
RECIPES := $(basename $(notdir $(wildcard recipes/*.yaml)))

.DEFAULT_GOAL := help

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 20
	@echo; echo "recipes (make RECIPE, make prepare-RECIPE, make plan-RECIPE):"
	@printf '  %s\n' $(RECIPES)
	@echo; echo "for development (tools/dev.mk):"
	@grep -hE '^[a-z-]+:.*##' tools/dev.mk | sed 's/:.*##/\t/' | expand -t 20

demo: $(VENV)/.demo  ## Train the embedded default on this machine's CPU, in minutes; installs what that needs
	$(XP) $(ARGS)

setup: $(VENV)/.done  ## Make .venv with everything that a run and the tests need

$(VENV)/.done: pyproject.toml requirements/all.lock tools/make_venv.py
	$(call venv,$(VENV)) --lock requirements/all.lock
	$(editable)
	touch $@ $(VENV)/.demo

# A part of the above. A complete .venv stays complete.
$(VENV)/.demo: pyproject.toml requirements/demo.lock tools/make_venv.py
	$(call venv,$(VENV)) --lock requirements/demo.lock
	$(editable)
	touch $@

plan: setup  ## Show what would run (ARGS="env=... backend=...")
	$(XP) plan $(ARGS)

$(RECIPES): setup
	$(XP) install --for-run recipes=$@ $(ARGS)
	$(XP) recipes=$@ $(ARGS)

$(addprefix prepare-,$(RECIPES)): prepare-%: setup
	$(XP) prepare recipes=$* $(ARGS)

$(addprefix plan-,$(RECIPES)): plan-%: setup
	$(XP) plan recipes=$* $(ARGS)

# Two of the three run at the same time: mypy, and then SkyRL's own code, use one core for a minute or two.
test: setup $(SKYRL_VENV)/.done  ## Style, types, import rules, and every test that takes less than a minute; what .ci/run calls
	$(MAKE) --no-print-directory --jobs=2 check ordinary-tests test-skyrl

# Tests of one file stay together: their fixtures are trained models and servers.
# The first line compiles the large packages once; otherwise each of the first processes compiles them.
ordinary-tests: setup
	$(bytecode) $(BIN)/python -c "import openreward, xp.backends.trl.worker.train"
	$(bytecode) $(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: setup  ## The tests that take longer
	$(BIN)/python -m pytest -m slow

test-gpu: setup  ## The smallest run of each trainer on this machine's GPUs; a skipped test says why
	$(BIN)/python -m pytest -m gpu tests/gpu -rs

check: setup  ## ruff, mypy --strict, import-linter; one value on a line; rules of the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.style_rules
	$(BIN)/python -m tools.test_rules

format: setup  ## Apply ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: setup  ## Rewrite the golden native keys; review the diff
	XP_GOLDEN=write $(BIN)/python -m pytest -q tests/golden

docs: setup  ## Rewrite the docs that are made from the code (docs/parity.md, docs/metrics.md, docs/reference.md)
	$(BIN)/python -m tools.pages

# The site has an environment of its own: neither xp nor its tests need these packages.
$(DOCS_VENV)/.done: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --requirement requirements/docs.txt
	touch $@

docs-site: $(DOCS_VENV)/.done  ## Build the site of docs/ into outputs/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --config-file tools/mkdocs.yml
	@echo "open outputs/site/index.html"

bench: setup  ## Run the benchmarks of docs/results.md on this machine (ARGS="plan store")
	$(BIN)/python -m tools.benchmarks $(ARGS)

clean:  ## Remove .venv and caches; outputs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help demo setup plan test ordinary-tests test-slow test-gpu check format golden docs docs-site bench clean $(RECIPES) \
	$(addprefix prepare-,$(RECIPES)) $(addprefix plan-,$(RECIPES))

include tools/dev.mk
