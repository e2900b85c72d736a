"""Rows of the section `evaluation`."""

from __future__ import annotations

from xp.planning.rows import Row, no_best, no_patience

EVALUATION = (
    Row("evaluation.num_tasks", carried_by="xp.tasks.rounds: rows of the held-out view"),
    Row("evaluation.samples_per_task", carried_by="xp.tasks.rounds: rows of the held-out view"),
    Row("evaluation.temperature", "generator.eval_sampling_params.temperature"),
    Row("evaluation.before_training", carried_by="the evaluate stage", native=("trainer.eval_before_train",)),
    Row(
        "evaluation.every",
        lambda s: {"trainer.eval_interval": s.evaluation.every or -1},
        note=lambda s: "SkyRL evaluates after the last step too." if s.evaluation.every else "",
    ),
    Row("evaluation.keep_best", carried_by="xp.worker.best, by xp.backends.skyrl.worker.trainer", refuse=no_best),
    Row(
        "evaluation.patience",
        carried_by="xp.worker.best; trainer.max_training_steps, once it is spent",
        native=("trainer.max_training_steps",),
        refuse=no_patience,
    ),
    Row(
        "evaluation.batch_size",
        "trainer.eval_batch_size",
        note="SkyRL plays one batch after the other; each lasts as long as its longest episode.",
    ),
)
