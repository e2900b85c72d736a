"""The check that a training has trained: by its trainer's count of updates, and by the weights of its model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.lib.models.files import local_directory
from xp.lib.text import counted
from xp.worker.best import BestKeeper
from xp.worker.stage import StageConfig

LEARN = "choose tasks that the model solves sometimes, or raise training.group_size or training.temperature"


def check_trained(
    stage: str,
    config: StageConfig,
    requested: int,
    start: str,
    model: str,
    keeper: BestKeeper | None = None,
) -> None:
    """Checks a training or fine-tuning that ended without an error; docs/exit-codes.md says what counts.

    Args:
        stage: its name in the metrics, whose lines are written where the trainer has made a step.
        config: input of the stage.
        requested: steps, or updates of a fine-tuning.
        start: directory or id of the model with which it began.
        model: directory of the model that it published.
        keeper: by its rule the training may end early. None means that it may not.

    Raises:
        XpError: (NOT_TRAINED) it made fewer steps than requested, none of its updates had a gradient, or its model is
            the one with which it began.
    """
    lines = [line for line in read_metrics(Path(config.places.metrics), stage) if line["step"]]
    last = lines[-1]["step"] if lines else 0
    updates = [line.get("training/updates") for line in lines]
    is_early = keeper is not None and keeper.stop(last) is not None
    begun = local_directory(start, Path())
    if last < requested and not is_early:
        fault = f"the trainer ended after {last} of {counted(requested, 'step')}, without an error; its log may say why"
    elif None not in updates and not any(updates):
        fault = (
            f"no update of {counted(last, 'step')} had a gradient: no token was trained, or the rewards of each group"
            f" were equal\n{LEARN}; where all episodes were cut, raise training.max_response_tokens"
        )
    elif begun is not None and have_same_weights(begun, Path(model)):
        fault = (
            f"after {counted(last, 'step')}, all weights of {model} are still those of {start}: the updates are smaller"
            " than the rounding of its data type\nraise the learning rate or the number of updates"
        )
    else:
        return
    raise XpError(f"{stage}: {fault}", ExitCode.NOT_TRAINED)


def have_same_weights(first: Path, second: Path) -> bool:
    """Returns whether all weights that two Hugging Face directories have in common, if any, are equal in the data type
    of the second."""
    import torch
    from safetensors import safe_open

    with ExitStack() as opened:
        tensors: list[dict[str, Any]] = []
        for directory in (first, second):
            files = [
                opened.enter_context(safe_open(file, "pt"))
                for file in directory.glob("*.safetensors")
            ]
            tensors.append({name: file for file in files for name in file.keys()})  # noqa: SIM118
        common = tensors[0].keys() & tensors[1].keys()
        for name in common:
            tensor, other = (file_of[name].get_tensor(name) for file_of in tensors)
            if not torch.equal(tensor.to(other.dtype), other):
                return False
        return bool(common)


def never_filled(num_kept: int, needed: int, num_groups: int) -> XpError:
    """Error of a step of dynamic sampling that has drawn all the tasks that it may, and is not full."""
    return XpError(
        f"algorithm.dynamic_sampling: {num_kept} of a step's {num_groups} groups have different rewards, and an update"
        f" needs {needed}\n{LEARN}",
        ExitCode.NOT_TRAINED,
    )
