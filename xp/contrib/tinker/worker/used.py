"""Tokens that the service bills, counted by all threads that send requests, and their metrics."""

from __future__ import annotations

from threading import Lock

from xp.contrib.tinker.worker.cost_limit import COST
from xp.spec.launcher import TokenPrices


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
