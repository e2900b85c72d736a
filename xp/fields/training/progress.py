"""The section `training`: limits, checkpoints and checks."""

from __future__ import annotations

from xp.fields.field import OWN, Column, Field, by_xp
from xp.fields.shared import has_own_decoding, is_ahead, is_megatron, uses_vllm
from xp.fields.training.sampling import CUTS
from xp.spec.training import OnNonfinite

OLDER = "Episodes of an older policy have a larger gap: it is recorded, and only episodes of age 0 can stop the run."
"""Note on `training.max_logprob_gap` where `training.max_staleness` is above 0."""


# TRL
NOT_TRIED_VLLM = "Not tried: vLLM's batch invariance. It forms batches by the times of requests, so that samples can differ."

# Slime
REPORTED_LATER = (
    "Slime reports the gap of an update after it; the first update of a step is checked."
)
RECOMPUTE = {
    "--recompute-granularity": "full",
    "--recompute-method": "uniform",
    "--recompute-num-layers": 1,
}


PROGRESS = (
    Field("training.max_hours", xp="xp.worker.time_limit"),
    Field(
        "training.budget_usd",
        xp=Column(
            implemented_by="xp.worker.time_limit",
            refuse_if=lambda s: (
                s.training.budget_usd is not None
                and s.hardware.usd_per_hour is None
                and s.hardware.usd_per_million_tokens is None
            ),
            refuse="the price of the machines is not known; set hardware.usd_per_hour=N, or of a service"
            " hardware.usd_per_million_tokens",
            proof=OWN,
        ),
    ),
    Field(
        "training.checkpoint_every",
        trl=Column(
            lambda s: {
                "save_strategy": "steps",
                "save_steps": s.training.checkpoint_every * s.training.all_updates_per_step,
            }
        ),
        skyrl="trainer.ckpt_interval",
        slime="--save-interval",
    ),
    Field(
        "training.export_every",
        trl=Column(implemented_by="nothing: a checkpoint of TRL is a Hugging Face model"),
        skyrl=Column(
            lambda s: {
                "trainer.hf_save_interval": s.training.export_every or s.training.checkpoint_every
            }
        ),
        slime=Column(
            implemented_by=lambda s: (
                "--save-hf"
                if s.training.export_every is None
                else "xp.backends.slime.worker.training, which leaves the other exports of --save-hf out"
            )
        ),
    ),
    Field(
        "training.keep_checkpoints",
        trl="save_total_limit",
        skyrl="trainer.max_ckpts_to_keep",
        slime=Column(
            implemented_by="xp.backends.slime.worker.checkpoints",
            note="Slime deletes none; xp deletes old ones once a newer one is whole.",
            proof="slime::no_checkpoint_is_deleted",
        ),
    ),
    Field(
        "training.gradient_checkpointing",
        trl=Column(("gradient_checkpointing", "activation_checkpointing")),
        skyrl="trainer.gradient_checkpointing",
        slime=Column(
            lambda s: RECOMPUTE if s.training.gradient_checkpointing else dict.fromkeys(RECOMPUTE)
        ),
    ),
    *by_xp(
        {
            "training.shuffle": "xp.tasks.schedule",
            "training.max_void_fraction": "xp.episode.metrics",
        }
    ),
    Field(
        "training.on_nonfinite",
        skyrl=Column(
            implemented_by="xp.backends.skyrl.worker.steps; SkyRL's FSDP2 leaves such an update out itself",
            refuse_if=lambda s: is_megatron(s) and s.training.on_nonfinite is OnNonfinite.SKIP,
            refuse="SkyRL's Megatron optimizer applies such an update; set stop, or strategy=fsdp2",
            proof="skyrl::megatron_makes_a_nonfinite_update",
        ),
        # With the check, Megatron raises its own error; without it, Slime skips the update, and
        # xp.backends.slime.worker.training reads its gradient norm.
        slime=Column(
            {"--no-check-for-nan-in-loss-and-grad": True},
            implemented_by="xp.backends.slime.worker.training",
        ),
        xp="xp.episode.finite",
    ),
    Field(
        "training.max_logprob_gap",
        trl=Column(
            implemented_by="xp.backends.trl.worker.guard, over the episodes of the step's first update, before it is made",
            note_if=is_ahead,
            note=OLDER,
            proof=OWN,
        ),
        skyrl=Column(
            implemented_by="xp.backends.skyrl.worker.trainer, over a step's episodes, before an update is made",
            note_if=is_ahead,
            note=OLDER,
            proof=OWN,
        ),
        slime=Column(
            implemented_by="xp.backends.slime.worker.training, of Slime's train_rollout_logprob_abs_diff",
            note=lambda s: f"{REPORTED_LATER} {OLDER}" if is_ahead(s) else REPORTED_LATER,
            proof={
                "Episodes of an older policy": OWN,
                "after it": "slime::the_gap_is_a_part_of_the_updates_report",
            },
        ),
        xp=Column(
            refuse_if=lambda s: (
                s.training.max_logprob_gap is not None
                and uses_vllm(s)
                and any(cuts(s) for cuts in CUTS.values())
            ),
            refuse="vLLM's log-probabilities are those after top_p, top_k, min_p and repetition_penalty, the trainer's those"
            " before, so the gap does not show whether the weights agree; set null, or all of them off",
            proof="engines::vllms_log_probabilities_are_cut",
        ),
    ),
    Field("training.on_symptom", xp="xp.worker.diagnosis.live"),
    Field(
        "training.deterministic",
        trl=Column(
            "full_determinism",
            note=NOT_TRIED_VLLM,
            note_if=lambda s: s.training.deterministic and not has_own_decoding(s),
        ),
        skyrl=Column(
            refuse="SkyRL has no deterministic mode; set false, or use backend=slime",
            proof="skyrl::no_key_is_a_deterministic_mode",
        ),
        slime=Column(("--deterministic-mode", "--sglang-enable-deterministic-inference")),
    ),
)
