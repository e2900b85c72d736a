"""Plays of episodes in Slime's real rollout, with its own arguments and conversion to training data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scripts import ROW, SCRIPTS, FakeMix, Script
from tests.support.sections import sampling_of
from tests.support.tiny import tokenizer_and_model, turn_ids
from tests.trainers.slime_setup import (
    engine,
    group_of,
    put_worker,
    slime_arguments,
    tiny_directory,
    worker_config,
)
from xp.episode.trajectory import Trajectory

ROOMY = sampling_of(400, 200, 2000)


class Kept:
    """A recorder in memory."""

    def __init__(self) -> None:
        self.records: list[Trajectory] = []

    def write(self, record: Trajectory) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Slime's arguments; its accelerator and its parsers are imported once."""
    return slime_arguments(tiny_directory(tmp_path_factory.mktemp("slime")))


@pytest.fixture
def args(arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from slime.utils import http_utils

    # Slime repeats a failed request sixty times, once a second.
    monkeypatch.setattr(http_utils.post, "__defaults__", (1, None))
    own = SimpleNamespace(**vars(arguments))
    own.xp_root = tmp_path
    return own


def play_group(args: Any, group: list[Any], *, evaluation: bool = False) -> list[Any]:
    """Slime's own function for a group, on its own event loop and with its own sampling parameters."""
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
    from slime.utils.async_utils import run as run_on_slimes_loop

    async def run() -> Any:
        # The state is made once for all tests, and reads the stop texts from the arguments of the first.
        sampling = {**GenerateState(args).sampling_params, "stop": args.rollout_stop}
        return await generate_and_rm_group(
            args,
            group,
            sampling,
            evaluation=evaluation,
        )

    return list(run_on_slimes_loop(run()))


def says_script(script: Script) -> Any:
    """The script's turns, one after another; the number of turns so far is read off the context."""
    tokenizer, _ = tokenizer_and_model()

    def says(ids: list[int]) -> list[int]:
        text = tokenizer.decode(ids)
        number = text.count("<|im_start|>assistant") - 1
        text = script.texts[number]
        return turn_ids(text)[: -1 if script.ends_by_itself(text) else None]

    return says


def play_script(
    args: Any, script: Script, size: int = 1, *, evaluation: bool = False, **changes: Any
) -> tuple[list[Any], FakeMix, Kept]:
    mix = FakeMix(script.rules)
    kept = Kept()
    limits = changes.pop("limits", ROOMY)
    put_worker(args, worker_config(args.xp_root, limits, **changes), mix, kept)
    args.rollout_stop = list(script.stop) or None
    with engine(args, says_script(script)):
        return play_group(args, group_of(ROW, size), evaluation=evaluation), mix, kept


def converted(args: Any, samples: list[Any]) -> dict[str, Any]:
    """Slime's `_convert_samples_to_train_data`, of the class behind its Ray actor."""
    from slime.ray.rollout import RolloutManager
    from slime.utils.misc import load_function

    plain = RolloutManager.__ray_metadata__.modified_class
    manager = object.__new__(plain)
    manager.args = args
    manager.custom_reward_post_process_func = load_function(args.custom_reward_post_process_path)
    manager.custom_convert_samples_to_train_data_func = None
    data: dict[str, Any] = manager._convert_samples_to_train_data(samples)
    return data


def script_named(name: str) -> Script:
    return next(one for one in SCRIPTS if one.name == name)
