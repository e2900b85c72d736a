"""Where the fake vLLM is, and a sampling for it."""

from __future__ import annotations

from pathlib import Path

from tests.support.sections import sampling_of

FAKE = Path(__file__).parents[1] / "trainers/fake_vllm"
SAMPLING = sampling_of(100, 5, 12, temperature=0.8, top_p=0.9)
