"""What one rank of several does in tests/trainers/test_trl_ranks.py; the first rank writes what all of them saw.

accelerate launch ... -m tests.trainers.trl_ranks CONFIG RESULT [rows]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.evaluations import evaluated
from tests.support.fake_session import RULES, with_limits
from tests.support.jobs import train_config
from tests.support.scripts import FakeMix
from tests.support.sections import replace, with_model
from xp.backends.trl.worker.checkpoints import latest_checkpoint
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.held_out import HeldOutEvaluation
from xp.backends.trl.worker.policy import publish_policy
from xp.backends.trl.worker.process import Ranks, TrainingProcess, leave_group, quiet_trainer
from xp.backends.trl.worker.rollout import TASK_ID, Rollouts
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.composition import compose
from xp.envs.base import EnvUnavailable, Message
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.errors import XpError
from xp.spec.env import OnNoToolCall
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.play import sample_numbers
from xp.worker.places import RunPaths


def row(number: int) -> TaskRow:
    task_id = f"fake/train/{number}"
    opening = (Message(role="user", content=f"play {number}"),)
    return TaskRow(
        task_id,
        "fake",
        Purpose.TRAIN,
        "train",
        number,
        "h",
        opening,
        "[]",
        1.0,
    )


ROWS = [row(number) for number in range(32)]
FLAT = 3
"""Task whose episodes have the same reward, and are masked as `zero_variance_filter` masks them."""


class Scripted:
    """Completions and rewards that depend on the task and the sample alone, on however many ranks.

    With rows, the episodes of odd tasks are in two: the second has the history of the first, and the tokens after it.
    Among these are a void episode and a group of equal rewards, which are masked.
    """

    def __init__(self, ranks: Ranks, *, has_rows: bool = False) -> None:
        self._ranks = ranks
        self._has_rows = has_rows

    @staticmethod
    def reward(task: int, sample: int) -> float | None:
        if task == FLAT:
            return 0.5
        return None if (task, sample) == (1, 1) else (task * 7 + sample * 3) % 5 / 4

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        end = trainer.processing_class.eos_token_id
        numbers = [int(prompt[0][TASK_ID].rpartition("/")[2]) for prompt in prompts]
        shares = self._ranks.gather([str(number) for number in numbers])
        before = sum(len(share) for share in shares[: self._ranks.number])
        samples = sample_numbers([one for share in shares for one in share])[
            before : before + len(prompts)
        ]
        pairs = list(zip(numbers, samples, strict=True))
        whole = [[20 + task, *range(60, 62 + sample + task % 3), end] for task, sample in pairs]
        settled = [self.reward(*pair) for pair in pairs]
        kept = [
            int(reward is not None and task != FLAT)
            for (task, _), reward in zip(pairs, settled, strict=True)
        ]
        rows = [(number, ids, [kept[number]] * len(ids)) for number, ids in enumerate(whole)]
        if self._has_rows:
            cuts = [
                2 if task % 2 else len(ids) for (task, _), ids in zip(pairs, whole, strict=True)
            ]
            rows = [
                (number, ids[: cuts[number]], mask[: cuts[number]]) for number, ids, mask in rows
            ]
            later = [
                (number, ids, cuts[number])
                for number, ids in enumerate(whole)
                if cuts[number] < len(ids)
            ]
            rows += [
                (number, ids, [0] * cut + [kept[number]] * (len(ids) - cut))
                for number, ids, cut in later
            ]
            longest = max(self._ranks.gather([len(rows)]))[0]
            rows += [(0, [end], [0])] * (-(-longest // 4) * 4 - len(rows))  # whole groups
        return {
            "prompt_ids": [[10, 11, 12 + pairs[number][0]] for number, _, _ in rows],
            "completion_ids": [ids for _, ids, _ in rows],
            "logprobs": [[0.0] * len(ids) for _, ids, _ in rows],
            "env_mask": [mask for _, _, mask in rows],
            "episodes": [number for number, _, _ in rows],
            "settled": settled + [None] * (len(rows) - len(settled)),
        }


def scripted(
    directory: Path, overrides: Sequence[str], tokenizer: Any, rollouts: Any = None
) -> Any:
    """A trainer of the model in `directory/base`, whose episodes are scripted."""
    config = train_config(TRLTrainConfig, compose(overrides), RunPaths(str(directory), 1, "tasks"))
    config = with_model(config, directory / "base")
    chat = ChatTokens(tokenizer)
    log = TRLStepLog(config, None)
    return make_trainer(
        config,
        os.environ,
        chat,
        ROWS,
        log,
        rollouts or Scripted(Ranks()),
    )


def main(path: str, result: str, *, has_rows: bool) -> None:
    config = TRLTrainConfig.from_json(Path(path).read_text())
    ranks = Ranks()
    quiet_trainer(1)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.reference)
    chat = ChatTokens(tokenizer)
    found: dict[str, Any] = {}
    for num_steps in (2, config.num_steps):
        trainer = train(
            config,
            num_steps,
            tokenizer,
            Scripted(ranks, has_rows=has_rows),
            ranks,
        )
        found |= told(trainer)
    if config.num_processes > 1 and not has_rows:
        found |= {
            f"uneven_{name}": value for name, value in uneven(config, trainer, chat, ranks).items()
        }
        found["health"] = health(config, trainer, chat, ranks)
    target = Path(config.places.model)
    publish_policy(
        trainer,
        chat,
        target,
        config.spec.model,
        ranks,
        config.start_model,
    )
    if ranks.is_main:
        Path(result).write_text(json.dumps(found))
    leave_group(ranks)


def train(
    config: TRLTrainConfig, num_steps: int, tokenizer: Any, rollouts: Any, ranks: Ranks
) -> Any:
    """Continue training from the last checkpoint up to this number of steps."""
    config = replace(
        config, grpo={**config.grpo, "max_steps": num_steps * config.updates_per_rollout}
    )
    log = TRLStepLog(
        config, MetricsFile(Path(config.places.metrics), "train", 1) if ranks.is_main else None
    )
    trainer = make_trainer(
        config,
        os.environ,
        ChatTokens(tokenizer),
        ROWS,
        log,
        rollouts,
    )
    checkpoint = latest_checkpoint(Path(config.grpo["output_dir"]))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


def told(trainer: Any) -> dict[str, Any]:
    lines = [line for line in trainer.state.log_history if "loss" in line]
    shards = {type(parameter).__name__ for parameter in trainer.model.parameters()}
    return {
        "losses": [line["loss"] for line in lines],
        "grad_norms": [line["grad_norm"] for line in lines],
        "parameters": sorted(shards),
        "reference": reference_output(trainer),
    }


def reference_output(trainer: Any) -> str | None:
    """Data type in which FSDP2 returns what the reference model computes; None where nothing is sharded."""
    from torch.distributed.fsdp import FSDPModule

    reference = trainer.ref_model
    return (
        str(reference._get_fsdp_state()._mp_policy.output_dtype)
        if isinstance(reference, FSDPModule)
        else None
    )


def uneven(
    config: TRLTrainConfig, trainer: Any, chat: ChatTokens, ranks: Ranks
) -> Mapping[str, Any]:
    """Episodes of the untrained policy, nudged for one turn on the first rank and for four on the second."""
    rules = replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE, max_turns=1 + 3 * ranks.number)
    output = played(
        config,
        trainer,
        chat,
        ranks,
        FakeMix(rules),
        has_held_out=True,
    )
    masks = [len(mask) for mask in output["env_mask"]]
    return {
        "lengths": ranks.gather([len(ids) for ids in output["completion_ids"]]),
        "masks": ranks.gather(masks),
        "metrics": Path(config.places.metrics).read_text().splitlines()[-3:]
        if ranks.is_main
        else [],
        "trained": evaluated(Path(config.evaluation or "").parent)["after"]
        if ranks.is_main
        else {},
    }


def health(config: TRLTrainConfig, trainer: Any, chat: ChatTokens, ranks: Ranks) -> list[list[str]]:
    """Errors of each rank when the environment is down for the second rank only."""
    rules = replace(with_limits(RULES, retries_per_episode=0), on_no_tool_call=OnNoToolCall.NUDGE)
    try:
        played(
            config, trainer, chat, ranks, DownMix(rules) if ranks.number == 1 else FakeMix(rules)
        )
    except XpError as error:
        return ranks.gather([f"{error.code.name}: {error}"])
    return ranks.gather(["nothing"])


def played(
    config: TRLTrainConfig,
    trainer: Any,
    chat: ChatTokens,
    ranks: Ranks,
    mix: Any,
    *,
    has_held_out: bool = False,
) -> dict[str, list[Any]]:
    log = TRLStepLog(
        config, MetricsFile(Path(config.places.metrics), "uneven", 1) if ranks.is_main else None
    )
    own = ROWS[4 * ranks.number :][:4]
    with Recorder(
        Path(config.stage_dir) / f"rank_{ranks.number}.jsonl", mix, None, os.environ
    ) as recorder:
        process = TrainingProcess(config, chat, mix, log, recorder, ranks)
        held_out = None
        if has_held_out:
            asked = EvaluateConfig.from_json(Path(config.evaluation or "").read_text())
            episodes = Path(config.stage_dir) / "episode.json"
            held_out = HeldOutEvaluation(process, asked, episodes, ROWS[20:25])
        rollouts = Rollouts(process, ROWS, held_out)
        output = rollouts([[{TASK_ID: row.task_id}] for row in own], trainer)
        rollouts.evaluate_trained(trainer)
    log.update(config.updates_per_rollout, {"loss": 0.0})
    return output


class DownMix(FakeMix):
    """No session opens."""

    def episode(self, row: TaskRow) -> Any:
        from xp.envs.base import Task
        from xp.episode.episode import Episode

        def refuse() -> Any:
            raise EnvUnavailable("refused")

        return Episode(Task(row.env, row.split, row.index), refuse, self._rules)


if __name__ == "__main__":
    main(*sys.argv[1:3], has_rows="rows" in sys.argv[3:])
