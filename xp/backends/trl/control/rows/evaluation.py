"""Rows of the section `evaluation`."""

from __future__ import annotations

from xp.planning.rows import Row, no_best, no_patience

ROUNDS = "xp.tasks.rounds, in the evaluate stage and while training"

EVALUATION = (
    Row("evaluation.num_tasks", carried_by=ROUNDS),
    Row("evaluation.samples_per_task", carried_by=ROUNDS),
    Row("evaluation.temperature", carried_by="the evaluate stage"),
    Row("evaluation.before_training", carried_by="the evaluate stage"),
    Row("evaluation.batch_size", carried_by="the evaluate stage"),
    Row("evaluation.every", carried_by="xp.backends.trl.worker.held_out", native=("eval_strategy",)),
    Row(
        "evaluation.keep_best",
        carried_by="xp.worker.best",
        note=lambda s: "The model of the last step is not among them." if s.evaluation.keep_best else "",
        native=("load_best_model_at_end", "metric_for_best_model"),
        refuse=no_best,
    ),
    Row("evaluation.patience", carried_by="xp.worker.best", refuse=no_patience),
)
