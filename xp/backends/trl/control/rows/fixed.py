"""Fields of GRPOConfig that xp sets the same for every spec."""

from __future__ import annotations

from xp.backends.capability import Row

FIXED = Row(
    "",
    {
        # Metrics are xp's (metrics.jsonl), one line a rollout step; so is the progress bar.
        "report_to": "none",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        # Evaluation is a stage of its own.
        "eval_strategy": "no",
        # Truncation is the Episode's word, not a missing EOS; the rollout masks such episodes itself.
        "mask_truncated_completions": False,
        # The order of tasks is xp's (xp.tasks.schedule), the same on every backend.
        "shuffle_dataset": False,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
        "disable_dropout": True,
        # Every parameter that is trained takes part in every forward.
        "ddp_find_unused_parameters": False,
    },
)
