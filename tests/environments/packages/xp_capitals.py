"""A package as verifiers' docs describe one: a taskset with two weighted rewards and a metric, one answer."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Capitals"]

PAIRS = [
    ("France", "Paris"),
    ("Italy", "Rome"),
    ("Japan", "Tokyo"),
    ("Kenya", "Nairobi"),
    ("Peru", "Lima"),
]


class CapitalData(vf.TaskData):
    answer: str


class CapitalTask(vf.Task[CapitalData]):
    @vf.reward(weight=2.0)
    async def correct(self, trace) -> float:
        return float(self.data.answer.lower() in trace.last_reply.lower())

    @vf.reward(weight=-0.5)
    async def wordy(self, trace) -> float:
        return float(len(trace.last_reply.split()) > 3)

    @vf.metric
    async def words(self, trace) -> float:
        return float(len(trace.last_reply.split()))


class CapitalsConfig(vf.TasksetConfig):
    continent: str = ""


class Capitals(vf.Taskset[CapitalTask, CapitalsConfig]):
    def load(self):
        for country, capital in PAIRS:
            prompt = f"What is the capital of {country}?"
            data = CapitalData(prompt=prompt, system_prompt="Answer shortly.", answer=capital)
            yield CapitalTask(data, self.config.task)
