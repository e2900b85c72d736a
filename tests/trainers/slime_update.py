"""A small step of episodes for Slime's own advantages and losses, on Megatron's own process groups without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.support.sections import PLACES
from tests.support.slime_arguments import parse
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig
from xp.composition import compose

VOCABULARY = 11
SPEC = (
    "env=whodunit",
    "backend=slime",
    "hardware=h100x8",
    "model=qwen3-4b",
    "training.kl_coef=0.0",
)
PROMPTS = (9, 14, 8, 11, 10)
MASKS = (
    np.array([1, 1, 0, 0, 0, 1, 1, 1, 1]),
    np.array([1, 1, 1]),
    np.array([0]),
    np.array([1, 0, 1, 1, 1, 1]),
    np.array([1, 1, 0, 0, 1]),
)
"""1: the policy's token, 0: a tool's; the third episode is void."""
REWARDS = (1.0, 0.25, 0.0, -0.5, 0.75)


@dataclass(frozen=True)
class Step:
    """Drawn numbers of one step; arrays of an episode are [response]."""

    logits: list[np.ndarray]
    """[prompt + response, VOCABULARY] each."""
    tokens: list[np.ndarray]
    old: list[np.ndarray]
    """Log-probabilities under the policy before the step."""
    of_engine: list[np.ndarray]
    of_reference: list[np.ndarray]
    values: list[np.ndarray]
    advantages: list[float]

    def log_probs(self, at: int) -> np.ndarray:
        """Of an episode's response under the policy that is trained."""
        return np.take_along_axis(np.log(self.chances(at)), self.response(at)[:, None], 1)[:, 0]

    def chances(self, at: int) -> np.ndarray:
        """[response, VOCABULARY]: of each token, given those before it."""
        logits = self.logits[at][PROMPTS[at] - 1 : -1]
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(raised / raised.sum(1, keepdims=True))

    def response(self, at: int) -> np.ndarray:
        return self.tokens[at][PROMPTS[at] :]

    def logits_gradient(self, of_log_probs: list[np.ndarray]) -> list[np.ndarray]:
        """By the chain rule: what a gradient by the log-probabilities is by the logits."""
        found = []
        for at, gradient in enumerate(of_log_probs):
            whole = np.zeros_like(self.logits[at])
            whole[PROMPTS[at] - 1 : -1] = gradient[:, None] * (
                np.eye(VOCABULARY)[self.response(at)] - self.chances(at)
            )
            found.append(whole)
        return found


def drawn(seed: int = 0, far: float = 0.4) -> Step:
    """`far`: how far the policy is from the one before the step."""
    draw = np.random.default_rng(seed)
    lengths = [prompt + len(mask) for prompt, mask in zip(PROMPTS, MASKS, strict=True)]
    tokens = [draw.integers(0, VOCABULARY, length) for length in lengths]
    logits = [draw.normal(size=(length, VOCABULARY)) for length in lengths]
    made = Step(
        logits,
        tokens,
        [],
        [],
        [],
        [draw.normal(size=len(mask)) for mask in MASKS],
        [0.9, -0.4, 0.0, -1.2, 0.6],
    )
    for at, mask in enumerate(MASKS):
        made.old.append(made.log_probs(at) + draw.normal(scale=far, size=len(mask)))
        made.of_engine.append(made.old[at] + draw.normal(scale=0.7, size=len(mask)))
        made.of_reference.append(made.old[at] + draw.normal(scale=0.5, size=len(mask)))
    return made


def arguments(root: Path, *overrides: str) -> Any:
    """Slime's own, from its real parser, of what xp renders."""
    spec = compose([*SPEC, *overrides])
    file = root / "worker.json"
    root.mkdir(exist_ok=True)
    file.write_text(
        WorkerConfig(
            root=str(root),
            spec=spec,
            places=PLACES,
            stage="train",
            steps=1,
        ).to_json()
    )
    return SimpleNamespace(**{**vars(parse(spec, root)), WORKER_ATTRIBUTE: str(file)})


def batch_of(step: Step) -> dict[str, Any]:
    """What Slime hands a loss, on one rank; log-probabilities and masks as its training process holds them."""
    import torch

    masks = [torch.tensor(mask, dtype=torch.int) for mask in MASKS]

    def floats(arrays: list[np.ndarray]) -> list[Any]:
        return [torch.tensor(one, dtype=torch.float32) for one in arrays]

    return {
        "unconcat_tokens": [torch.tensor(one) for one in step.tokens],
        "total_lengths": [len(one) for one in step.tokens],
        "response_lengths": [len(mask) for mask in MASKS],
        "loss_masks": masks,
        "rollout_mask_sums": torch.stack([mask.sum() for mask in masks]).float(),
        "advantages": floats(
            [np.full(len(mask), own) for mask, own in zip(MASKS, step.advantages, strict=True)]
        ),
        "log_probs": floats(step.old),
        "rollout_log_probs": floats(step.of_engine),
        "ref_log_probs": floats(step.of_reference),
        "values": floats(step.values),
        "rewards": list(REWARDS),
        "num_microbatches": [1],
        "micro_batch_indices": [[*range(len(MASKS))]],
        "global_batch_sizes": [len(MASKS)],
    }


@contextmanager
def megatron(root: Path, rank: int = 0, world: int = 1, context: int = 1) -> Iterator[None]:
    """Megatron's process groups over gloo; torch.compile, which wants a compiler, is off."""
    import torch
    from megatron.core import mpu

    from xp.backends.slime.worker import means

    torch._dynamo.config.disable = True
    store = torch.distributed.FileStore(str(root / "store"), world)
    torch.distributed.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=world,
    )
    mpu.initialize_model_parallel(context_parallel_size=context)
    try:
        yield
    finally:
        mpu.destroy_model_parallel()
        torch.distributed.destroy_process_group()
        for factors in (means._factors, means._constants):
            factors.clear()  # A worker process ends with its training; this one goes on with other tests.
