"""Tokens that the service bills, counted by all threads that send requests, and their metrics."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from threading import Lock
from typing import Final

from xp.episode.metrics_file import metrics_lines
from xp.errors import ExitCode, XpError
from xp.spec.launcher import TokenPrices
from xp.worker.stage import StageConfig


class UsedTokens:
    """Tokens since the last line of metrics; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._prompt = 0
        self._sampled = 0
        self._trained = 0

    def add(self, *, prompt: int = 0, sampled: int = 0, trained: int = 0) -> None:
        """Counts the tokens of a request or of its answer."""
        with self._lock:
            self._prompt += prompt
            self._sampled += sampled
            self._trained += trained

    def metrics(self, prices: TokenPrices | None) -> dict[str, float]:
        """Tokens since the last call, and their price in US dollars if the prices are known."""
        with self._lock:
            prompt = self._prompt
            sampled = self._sampled
            trained = self._trained
            self._prompt = 0
            self._sampled = 0
            self._trained = 0
        line = {
            "cost/prompt_tokens": float(prompt),
            "cost/sampled_tokens": float(sampled),
            "cost/trained_tokens": float(trained),
        }
        if prices is not None:
            line[COST] = prices.usd(prompt, sampled, trained)
        return line


COST: Final = "cost/usd"
"""Metric with the price of a step's tokens."""


def check_cost(config: StageConfig, step: int, root: Path = Path()) -> None:
    """Ends a training on a service after a rollout step with a checkpoint, if the next one would be beyond the budget.

    Args:
        config: of the train stage.
        step: the finished step, or that from which a new attempt resumes; it is not the last one.
        root: the outputs root.

    Raises:
        XpError: (LIMIT) the training must end.
    """
    budget = config.spec.training.budget_usd
    every = config.spec.training.checkpoint_every
    lines = [line for line in metrics_lines(root / config.places.metrics) if COST in line]
    costs = [line[COST] for line in lines if line["stage"] == "train"]
    if budget is None or not costs or step == 0 or step % every:
        return
    used = sum(line[COST] for line in lines)
    checkpoint = every * median(costs)
    if used + checkpoint > budget:
        raise XpError(
            f"the training ends after step {step}, which has a checkpoint: the run's tokens cost {used:.2f} USD, and the next"
            f" {every}, about {checkpoint:.2f} USD more, would be beyond training.budget_usd={budget:g}\n"
            "continue it by resume=RUN with a larger value",
            ExitCode.LIMIT,
        )
