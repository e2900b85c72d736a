"""The fields of the spec that xp itself implements, on every backend that has no row for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FIELDS: Final[Mapping[str, str]] = {
    "xp.backends.slime.control.render": "backend.convert_model",
    "xp.backends.trl.worker.held_out": "evaluation.every evaluation.batch_size",
    "xp.diagnosis.live": "training.on_symptom",
    "xp.doctor": "backend.pins",
    "xp.engines.conversation": "training.stop",
    "xp.engines.teacher": "algorithm.distill.url algorithm.distill.key",
    "xp.envs": "env env.judge.model",
    "xp.episode": "env.reward_fn",
    "xp.episode.advantages": "algorithm.advantage_fn",
    "xp.episode.dialects": "model.dialect",
    "xp.episode.episode": (
        "env.max_turns env.on_no_tool_call env.on_malformed_call env.tool_calls_per_turn env.system_prompt"
        " env.limits.retries_per_episode"
    ),
    "xp.episode.finite": "training.on_nonfinite",
    "xp.episode.group": "env.group_reward_fn env.group_score_weight",
    "xp.episode.judge": "env.judge env.judge.model.price_in env.judge.model.price_out",
    "xp.episode.metrics": "training.max_void_fraction evaluation.pass_threshold",
    "xp.episode.mixture": "env.judge.weight",
    "xp.episode.rewards": "env.reward algorithm.overlong",
    "xp.episode.tokens": "model.chat_template model.tools_prompt",
    "xp.hardware": "hardware.name hardware.accelerator",
    "xp.launchers": "launcher",
    "xp.planning.episode": "env.secrets env.overrides env.judge.model.serve env.judge.model.accelerators",
    "xp.planning.memory": "hardware.accelerator_memory_gb",
    "xp.planning.native_keys": "sft.overrides backend.overrides",
    "xp.planning.plan": "name",
    "xp.planning.runtime": "backend.commits backend.runtime",
    "xp.planning.sft": "sft.data",
    "xp.planning.stages": (
        "env.train.pass_rate model.revision algorithm.distill.revision evaluation.before_training backend.num_threads"
        " hardware.accelerators_per_node hardware.num_nodes hardware.num_cpus hardware.memory_gb"
    ),
    "xp.planning.values": "model.max_context_tokens",
    "xp.plugins": "backend.name",
    "xp.run_records": "outputs model.name algorithm.name",
    "xp.tasks": "preparation env.train env.held_out",
    "xp.tasks.evaluated": "evaluation.num_tasks evaluation.samples_per_task",
    "xp.tasks.load": "training.max_prompt_tokens",
    "xp.tasks.schedule": "env.weight training.shuffle",
    "xp.tracking": "project tracking",
    "xp.worker.best": "evaluation.keep_best evaluation.patience",
    "xp.worker.demonstrations": (
        "sft.min_reward sft.per_task sft.num_episodes sft.thinking sft.loss_on sft.max_tokens sft.too_long"
        " sft.held_out_fraction"
    ),
    "xp.worker.distill": "algorithm.distill",
    "xp.worker.learning_rate": "sft.lr_schedule sft.min_learning_rate sft.warmup_updates",
    "xp.worker.places": "training.reference",
    "xp.worker.stage": "upload_rollouts",
    "xp.worker.tasks": "record_prompts",
    "xp.worker.time_limit": "training.max_hours training.budget_usd hardware.usd_per_hour",
    "xp.worker.token_budget": (
        "training.max_tokens_per_turn evaluation.temperature evaluation.top_p evaluation.top_k"
        " evaluation.max_tokens_per_turn evaluation.max_response_tokens"
    ),
}
"""Module or package -> the fields that it implements, or sections whose other fields it implements."""
BY_XP: Final[Mapping[str, str]] = {
    field: module for module, fields in _FIELDS.items() for field in fields.split()
}
"""Field or section -> the module or package that implements it."""
