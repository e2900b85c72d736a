"""The check that a training has trained, by its trainer's own count of updates and by its model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.lib.text import counted
from xp.models.files import local_directory
from xp.worker.best import BestKeeper, BestRule

LEARN = (
    "choose tasks that the model solves sometimes (env.train.pass_rate), or raise training.group_size or"
    " training.temperature"
)


def check_trained(
    stage: str, metrics: Path, num_steps: int, start: str, model: Path, *, root: Path, best: BestRule | None = None
) -> None:
    """Checks a training that ended without an error; docs/exit-codes.md says what counts.

    Args:
        stage: name of the stage in the metrics.
        metrics: the run's metrics.jsonl, with the lines of all attempts.
        num_steps: requested steps, or updates of a fine-tuning.
        start: directory or id of the model that it began with.
        model: directory of the model that it published.
        root: the outputs root.
        best: rule by which the training may end early; None: it may not.

    Raises:
        XpError: (NOT_TRAINED) it made fewer steps than requested, none of its updates had a gradient, or its model has
            the weights that it began with.
    """
    lines = read_metrics(metrics, stage)
    last = lines[-1]["step"] if lines else 0
    if last < num_steps and (best is None or BestKeeper(best, root).stop(last) is None):
        raise XpError(
            f"{stage}: the trainer ended after {last} of {counted(num_steps, 'step')}, without an error\n"
            "its log may have the reason; resume=RUN continues from the last checkpoint",
            ExitCode.NOT_TRAINED,
        )
    counts = [line.get("training/updates") for line in lines if line["step"]]
    if None not in counts and not sum(counts):
        raise XpError(
            f"{stage}: no update of {counted(last, 'step')} had a gradient: no token was trained, or the rewards of"
            f" each group were equal\n{LEARN}; if all episodes were cut, raise training.max_response_tokens or set"
            " algorithm.mask_truncated=false",
            ExitCode.NOT_TRAINED,
        )
    before = local_directory(start, root)
    if before is not None and have_same_weights(before, model):
        raise XpError(
            f"{stage}: after {counted(last, 'step')}, all weights of {model} are those of {start}: the updates are lost"
            " in the rounding of the published weights\nraise the learning rate or the number of updates, or publish"
            " in float32 (model.dtype)",
            ExitCode.NOT_TRAINED,
        )


def have_same_weights(first: Path, second: Path) -> bool:
    """Returns whether all weights of two Hugging Face directories are equal, bit for bit in the second's data type.

    Weights that only one of them has do not count; False if they have none in common.
    """
    import torch

    with ExitStack() as opened:
        one, other = (_weights(directory, opened) for directory in (first, second))
        names = one.keys() & other.keys()
        pairs = ((one[name].get_tensor(name), other[name].get_tensor(name)) for name in sorted(names))
        return bool(names) and all(torch.equal(a.to(b.dtype), b) for a, b in pairs)


def _weights(directory: Path, opened: ExitStack) -> dict[str, Any]:
    """Name of each weight -> its open file."""
    from safetensors import safe_open

    files = [opened.enter_context(safe_open(file, framework="pt")) for file in sorted(directory.glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118


def never_filled(num_kept: int, needed: int, num_groups: int) -> XpError:
    """Error of a step of dynamic sampling that has drawn all the tasks that it may, and is not full."""
    return XpError(
        f"algorithm.dynamic_sampling: {num_kept} of a step's {num_groups} groups have different rewards, and an update"
        f" needs {needed}\n{LEARN}; or set algorithm.dynamic_sampling=false",
        ExitCode.NOT_TRAINED,
    )
