"""Proofs of the messages outside the table of fields: what a constraint, the plan, a launcher or an engine refuses."""

from __future__ import annotations

from typing import Final

from xp.fields.field import OWN
from xp.fields.limits import Limit, claims, limits_of, proof_of

TESTS: Final = "tests/limits"
ENGINES: Final = f"{TESTS}/test_engines.py::test_"

SKYRL: Final = f"{TESTS}/test_skyrl.py::test_"
SLIME: Final = f"{TESTS}/test_slime.py::test_"
TRL: Final = f"{TESTS}/test_trl.py::test_"
LAUNCHERS: Final = f"{TESTS}/test_launchers.py::test_"
BATCHES: Final = "tests/trainers/test_batch_constraints.py::test_"

CONSTRAINTS: Final = (
    Limit(
        "xp/planning/batch.py",
        "divisible by engine.tensor_parallel, its key-value heads",
        f"{ENGINES}engines_divide_attention_by_heads",
    ),
    Limit(
        "xp/planning/batch.py",
        "divisible by tensor, its key-value heads",
        f"{SLIME}megatron_divides_attention_by_heads",
    ),
    Limit(
        "xp/planning/batch.py",
        "the model's layers, without first_stage_layers",
        f"{SLIME}megatron_divides_layers_among_stages",
    ),
    Limit(
        "xp/planning/batch.py",
        "divisible by expert x pipeline",
        f"{SLIME}megatron_divides_experts_among_ranks",
    ),
    Limit(
        "xp/planning/batch.py",
        "parallelism need strategy=megatron",
        f"{SKYRL}fsdp2_divides_no_layer",
    ),
    Limit("xp/planning/batch.py", "engine.accelerators must be less", OWN),
    Limit("xp/planning/batch.py", "the engines' accelerators must be divisible", OWN),
    Limit("xp/planning/batch.py", "divisible by tensor x pipeline x context", OWN),
    Limit("xp/planning/batch.py", "; the trainer does not check this", f"{BATCHES}skyrl_agrees"),
    Limit(
        "xp/backends/skyrl/control/constraints.py",
        "divisible by context, its key-value heads",
        f"{SKYRL}ulysses_divides_attention_by_heads",
    ),
    Limit(
        "xp/backends/skyrl/control/constraints.py",
        "the engines must take whole nodes",
        f"{SKYRL}trainers_have_the_same_number_on_each_node",
    ),
    *(
        Limit("xp/backends/skyrl/control/constraints.py", words, f"{BATCHES}skyrl_agrees")
        for words in (
            "divisible by the prompts of an update",
            "divisible by updates_per_step (an update is whole prompts)",
            "at least one episode for each data-parallel rank",
            "a rank's share of a step must be divisible by its share of an update",
            "x group_size must be divisible by the data-parallel size",
            "episodes of one rank must be divisible by micro_batch_size",
        )
    ),
    Limit("xp/backends/slime/control/constraints.py", "must be whole nodes, or part of one", OWN),
    *(
        Limit("xp/backends/slime/control/constraints.py", words, f"{BATCHES}slime_agrees")
        for words in (
            "x group_size must be divisible by updates_per_step",
            "divisible by the data-parallel size, with packed micro-batches too",
            "episodes of one rank must be divisible by micro_batch_size",
        )
    ),
    *(
        Limit("xp/backends/trl/control/constraints.py", words, f"{TRL}only_data_is_divided")
        for words in ("each process holds whole layers", "a sequence is not split over processes")
    ),
    *(
        Limit("xp/backends/trl/control/constraints.py", words, f"{BATCHES}trl_agrees")
        for words in (
            "x group_size must be divisible by updates_per_step x processes",
            "x group_size must be divisible by micro_batch_size x processes",
            "episodes of one process must be divisible by micro_batch_size",
        )
    ),
)
"""Of constraints on the batch shape."""

PLAN: Final = (
    *(
        Limit("xp/planning/run_size.py", words, OWN)
        for words in (
            "held-out tasks",
            "leaves no tasks to evaluate",
            "no task has a pass rate",
            "would change this order",
        )
    ),
    *(
        Limit("xp/planning/memory/fit.py", words, OWN)
        for words in (
            "at any length of episodes",
            "more than the machine's",
            "of a machine's own memory are",
        )
    ),
    *(
        Limit("xp/planning/refusals.py", words, OWN)
        for words in (
            "nodes, and",
            "on a CPU xp serves it with vllm alone",
            "serves no model",
            "one machine for itself",
            "needs an image, but the backend has none",
            "is a file, which only batch jobs can use",
            "on this machine and not in",
            "lower it, or choose a larger hardware option",
            "more than the memory of",
        )
    ),
    Limit(
        "xp/planning/refusals.py",
        "bfloat16; set model.dtype=float32",
        f"{TRL}bfloat16_needs_ampere",
    ),
    Limit(
        "xp/planning/refusals.py",
        "FlashAttention 2; set backend.attention=sdpa",
        f"{ENGINES}flash_attention_needs_ampere",
    ),
    Limit(
        "xp/planning/refusals.py",
        "attention over FP8; set null",
        f"{ENGINES}attention_over_fp8_needs_ampere",
    ),
)
"""Of the plan."""

TRAINERS: Final = (
    Limit("xp/planning/native_keys.py", "xp does not know what", OWN),
    Limit("xp/worker/diagnosis/rules.py", "they are not synchronised", OWN),
    Limit(
        "xp/execution/launchers/preflight.py",
        "whose server takes tokens with images",
        "tests/limits/test_trl.py::test_its_lock_has_no_server_of_tokens_with_pictures",
    ),
    Limit(
        "xp/worker/engines/vllm_pictures.py",
        "must be that of the model's directory",
        "tests/trainers/test_vllm_pictures.py::test_a_server_gets_the_pictures_and_must_return_xps_ids",
    ),
    *(
        Limit(f"xp/backends/{trainer}/control/columns.py", words, OWN)
        for trainer, words in (
            ("skyrl", "only engine"),
            ("skyrl", "does not send it to the engine"),
            ("slime", "only trainer"),
        )
    ),
    Limit(
        "xp/backends/skyrl/control/overrides.py",
        "silently accepts",
        f"{SKYRL}a_value_of_another_type_is_accepted",
    ),
    Limit(
        "xp/backends/skyrl/control/render.py",
        "need no key on a cluster's network",
        f"{ENGINES}vllms_server_asks_for_no_key_by_default",
    ),
    *(
        Limit(
            "xp/backends/skyrl/control/render.py",
            words,
            f"{SKYRL}padding_is_removed_for_flash_attention_alone",
        )
        for words in ("cannot pack this network's episodes", "set false, or leave it out")
    ),
    Limit("xp/backends/skyrl/worker/advantages.py", "not by SkyRL's own", OWN),
    Limit(
        "xp/worker/skyrl_names.py",
        "must be shorter than the run",
        f"{SLIME}a_warm_up_ends_before_the_training",
    ),
    Limit(
        "xp/worker/skyrl_names.py",
        "warm-up begins there",
        f"{SKYRL}megatrons_warm_up_begins_at_0",
    ),
    Limit(
        "xp/backends/slime/control/render.py",
        "SGLang and its router need no key",
        f"{ENGINES}sglangs_server_asks_for_no_key_by_default",
    ),
    Limit(
        "xp/worker/slime_names.py",
        "refuses a warm-up that is longer",
        f"{SLIME}a_warm_up_ends_before_the_training",
    ),
    Limit("xp/backends/slime/worker/rollout.py", "the engine returned the experts", OWN),
    Limit("xp/worker/trained.py", "without an error", OWN),
    Limit(
        "xp/lib/models/weights.py",
        "its weights are quantized",
        f"{TRL}quantized_weights_are_not_trained",
    ),
)
"""Of trainers, beside their columns."""

LAUNCHED: Final = (
    Limit("xp/execution/launchers/base.py", "no jobs that continue without this process", OWN),
    Limit("xp/execution/launchers/local.py", "runs on this machine only", OWN),
    Limit("xp/execution/launchers/modal.py", "gives a stage one container", OWN),
    Limit("xp/execution/launchers/modal_app.py", "of a Modal Secret", OWN),
    Limit("xp/execution/launchers/modal_app.py", "launcher=modal has", OWN),
    Limit("xp/execution/launchers/node/ray_cluster.py", "is not complete", OWN),
    Limit("xp/execution/launchers/ray.py", "a cluster of this machine only", OWN),
    Limit("xp/execution/launchers/ray.py", "choose a smaller hardware option", OWN),
    Limit(
        "xp/execution/launchers/ray.py",
        "stores variables as plain text",
        f"{LAUNCHERS}ray_keeps_a_jobs_variables_in_plain_text",
    ),
    Limit("xp/execution/launchers/slurm_array.py", "allows no job arrays", OWN),
    Limit("xp/execution/launchers/slurm_job.py", "knows no --container-image", OWN),
    Limit("xp/execution/launchers/slurm_job.py", "GPUs per node; set the type", OWN),
    Limit("xp/execution/launchers/slurm_job.py", "it has a comma or a colon", OWN),
    Limit("xp/contrib/kubernetes/manifest.py", "only if it knows Ray's version", OWN),
    Limit("xp/contrib/skypilot/task.py", "launcher=skypilot has", OWN),
    Limit(
        "xp/worker/engines/local.py",
        "adapters on accelerators alone",
        f"{ENGINES}sglang_pins_the_memory_of_adapters",
    ),
    Limit(
        "xp/worker/engines/teacher.py",
        "a vLLM server is needed",
        f"{ENGINES}sglang_answers_no_prompt_logprobs",
    ),
)
"""Of launchers and engines."""

MESSAGES: Final = (*CONSTRAINTS, *PLAN, *TRAINERS, *LAUNCHED)
"""Their `field` is the file of the message."""


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
