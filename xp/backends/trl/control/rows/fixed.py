"""Fields of GRPOConfig that xp sets the same for every spec."""

from __future__ import annotations

from xp.planning.rows import Row

FIXED = Row(
    "",
    {
        # xp writes the metrics (metrics.jsonl), one line per rollout step, and the progress bar.
        "report_to": "none",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        # Evaluation is a separate stage.
        "eval_strategy": "no",
        # The Episode determines truncation, not a missing EOS; the rollout masks such episodes itself.
        "mask_truncated_completions": False,
        # xp determines the order of tasks (xp.tasks.schedule), the same on every backend.
        "shuffle_dataset": False,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
        # The base model's dropout; xp.backends.trl.worker.lora sets the adapters' own afterwards.
        "disable_dropout": True,
        # No loss on the balance of a mixture's experts, as on SkyRL and Slime; TRL's default is the model's own factor.
        "router_aux_loss_coef": 0.0,
        # Every trained parameter is used in every forward pass.
        "ddp_find_unused_parameters": False,
    },
)
