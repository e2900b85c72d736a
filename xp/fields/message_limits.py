"""Proofs of the messages outside the table of fields: what a constraint, the plan, a launcher or an engine refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.fields.field import OWN
from xp.fields.limits import Limit, claims, limits_of, proof_of

TESTS: Final = "tests/limits"
ENGINES: Final = f"{TESTS}/test_engines.py::test_"

SKYRL: Final = f"{TESTS}/test_skyrl.py::test_"
SLIME: Final = f"{TESTS}/test_slime.py::test_"
TRL: Final = f"{TESTS}/test_trl.py::test_"
LAUNCHERS: Final = f"{TESTS}/test_launchers.py::test_"
PICTURES: Final = "tests/trainers/test_vllm_pictures.py::test_"
BATCHES: Final = "tests/trainers/test_batch_constraints.py::test_"

PROOFS: Final[Mapping[str, Mapping[str, str]]] = {
    # Constraints on the batch shape.
    "xp/planning/batch.py": {
        "divisible by engine.tensor_parallel, its key-value heads": f"{ENGINES}engines_divide_attention_by_heads",
        "divisible by tensor, its key-value heads": f"{SLIME}megatron_divides_attention_by_heads",
        "the model's layers, without first_stage_layers": f"{SLIME}megatron_divides_layers_among_stages",
        "divisible by expert x pipeline": f"{SLIME}megatron_divides_experts_among_ranks",
        "parallelism need strategy=megatron": f"{SKYRL}fsdp2_divides_no_layer",
        "engine.accelerators must be less": OWN,
        "the engines' accelerators must be divisible": OWN,
        "divisible by tensor x pipeline x context": OWN,
        "; the trainer does not check this": f"{BATCHES}skyrl_agrees",
    },
    "xp/backends/skyrl/control/constraints.py": {
        "divisible by context, its key-value heads": f"{SKYRL}ulysses_divides_attention_by_heads",
        "the engines must take whole nodes": f"{SKYRL}trainers_have_the_same_number_on_each_node",
        "divisible by the prompts of an update": f"{BATCHES}skyrl_agrees",
        "divisible by updates_per_step (an update is whole prompts)": f"{BATCHES}skyrl_agrees",
        "at least one episode for each data-parallel rank": f"{BATCHES}skyrl_agrees",
        "a rank's share of a step must be divisible by its share of an update": f"{BATCHES}skyrl_agrees",
        "x group_size must be divisible by the data-parallel size": f"{BATCHES}skyrl_agrees",
        "episodes of one rank must be divisible by micro_batch_size": f"{BATCHES}skyrl_agrees",
    },
    "xp/backends/slime/control/constraints.py": {
        "must be whole nodes, or part of one": OWN,
        "x group_size must be divisible by updates_per_step": f"{BATCHES}slime_agrees",
        "divisible by the data-parallel size, with packed micro-batches too": f"{BATCHES}slime_agrees",
        "episodes of one rank must be divisible by micro_batch_size": f"{BATCHES}slime_agrees",
    },
    "xp/backends/trl/control/constraints.py": {
        "each process holds whole layers": f"{TRL}only_data_is_divided",
        "a sequence is not split over processes": f"{TRL}only_data_is_divided",
        "x group_size must be divisible by updates_per_step x processes": f"{BATCHES}trl_agrees",
        "x group_size must be divisible by micro_batch_size x processes": f"{BATCHES}trl_agrees",
        "episodes of one process must be divisible by micro_batch_size": f"{BATCHES}trl_agrees",
    },
    # The plan.
    "xp/planning/size_refusals.py": dict.fromkeys(
        (
            "held-out tasks",
            "leaves no tasks to evaluate",
            "no task has a pass rate",
            "would change this order",
        ),
        OWN,
    ),
    "xp/planning/memory/fit.py": dict.fromkeys(
        (
            "with empty episodes",
            "more than the machine's",
            "of host memory are",
        ),
        OWN,
    ),
    "xp/planning/refusals.py": {
        "nodes, and": OWN,
        "on a CPU xp serves it with vllm alone": OWN,
        "serves no model": OWN,
        "one machine for itself": OWN,
        "needs an image, but the backend has none": OWN,
        "is a file, which only batch jobs can use": OWN,
        "on this machine and not in": OWN,
        "lower it, or choose a larger hardware option": OWN,
        "more than the memory of": OWN,
        "bfloat16; set model.dtype=float32": f"{TRL}bfloat16_needs_ampere",
        "FlashAttention 2; set backend.attention=sdpa": f"{ENGINES}flash_attention_needs_ampere",
        "attention over FP8; set null": f"{ENGINES}attention_over_fp8_needs_ampere",
    },
    # Trainers, beside their columns.
    "xp/planning/native_keys.py": {
        "xp does not know what": OWN,
    },
    "xp/worker/diagnosis/rules.py": {
        "they are not synchronised": OWN,
    },
    "xp/execution/launchers/preflight.py": {
        "whose server takes tokens with images": f"{TRL}its_lock_has_no_server_of_tokens_with_pictures",
    },
    "xp/worker/engines/vllm_pictures.py": {
        "must be that of the model's directory": f"{PICTURES}a_server_gets_the_pictures_and_must_return_xps_ids",
    },
    "xp/backends/skyrl/control/columns.py": dict.fromkeys(
        (
            "only engine",
            "does not send it to the engine",
        ),
        OWN,
    ),
    "xp/backends/slime/control/columns.py": {
        "only trainer": OWN,
    },
    "xp/backends/skyrl/control/overrides.py": {
        "silently accepts": f"{SKYRL}a_value_of_another_type_is_accepted",
    },
    "xp/backends/skyrl/control/render.py": {
        "need no key on a cluster's network": f"{ENGINES}vllms_server_asks_for_no_key_by_default",
        "cannot pack this network's episodes": f"{SKYRL}padding_is_removed_for_flash_attention_alone",
        "set false, or leave it out": f"{SKYRL}padding_is_removed_for_flash_attention_alone",
    },
    "xp/backends/skyrl/worker/advantages.py": {
        "not by SkyRL's own": OWN,
    },
    "xp/worker/skyrl_names.py": {
        "must be shorter than the run": f"{SLIME}a_warm_up_ends_before_the_training",
        "warm-up begins there": f"{SKYRL}megatrons_warm_up_begins_at_0",
    },
    "xp/backends/slime/control/render.py": {
        "SGLang and its router need no key": f"{ENGINES}sglangs_server_asks_for_no_key_by_default",
    },
    "xp/worker/slime_names.py": {
        "refuses a warm-up that is longer": f"{SLIME}a_warm_up_ends_before_the_training",
    },
    "xp/backends/slime/worker/rollout.py": {
        "the engine returned the experts": OWN,
    },
    "xp/worker/trained.py": {
        "without an error": OWN,
    },
    "xp/lib/models/weights.py": {
        "its weights are quantized": f"{TRL}quantized_weights_are_not_trained",
    },
    # Launchers and engines.
    "xp/execution/launchers/base.py": {
        "no jobs that continue without this process": OWN,
    },
    "xp/execution/launchers/local.py": {
        "runs on this machine only": OWN,
    },
    "xp/execution/launchers/modal.py": {
        "gives a stage one container": OWN,
    },
    "xp/execution/launchers/modal_app.py": dict.fromkeys(
        (
            "of a Modal Secret",
            "launcher=modal has",
        ),
        OWN,
    ),
    "xp/execution/launchers/node/ray_cluster.py": {
        "is not complete": OWN,
    },
    "xp/execution/launchers/ray.py": {
        "a cluster of this machine only": OWN,
        "choose a smaller hardware option": OWN,
        "stores variables as plain text": f"{LAUNCHERS}ray_keeps_a_jobs_variables_in_plain_text",
    },
    "xp/execution/launchers/slurm_array.py": {
        "allows no job arrays": OWN,
    },
    "xp/execution/launchers/slurm_job.py": dict.fromkeys(
        (
            "knows no --container-image",
            "GPUs per node; set the type",
            "it has a comma or a colon",
        ),
        OWN,
    ),
    "xp/contrib/kubernetes/manifest.py": {
        "only if it knows Ray's version": OWN,
    },
    "xp/contrib/skypilot/task.py": {
        "launcher=skypilot has": OWN,
    },
    "xp/worker/engines/local.py": {
        "adapters on accelerators alone": f"{ENGINES}sglang_pins_the_memory_of_adapters",
    },
    "xp/worker/engines/teacher.py": {
        "a vLLM server is needed": f"{ENGINES}sglang_answers_no_prompt_logprobs",
    },
}
"""File of a message -> words of the message -> its proof."""
MESSAGES: Final = tuple(
    Limit(file, words, proof) for file, proofs in PROOFS.items() for words, proof in proofs.items()
)


def with_proof(backend: str, field: str, message: str) -> str:
    """A refusal or a note with the tests that prove it, if it is a limit of a trainer, an engine or a card."""
    limits = sorted((*limits_of(backend), *limits_of("xp")), key=lambda limit: not limit.words)
    proofs = [proof_of(limits, field, sentence) for sentence in claims(message)]
    if not any(proofs):
        proofs = [limit.proof for limit in MESSAGES if limit.words in message]
    tests = dict.fromkeys(proof for proof in proofs if proof not in (None, OWN))
    named = ", ".join(f"`{test}`" for test in tests)
    if named:
        return f"{message} (proof: {named})"
    return message
