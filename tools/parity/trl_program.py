"""The recorded batch through xp's GRPOTrainer, for `python -m tools.parity`.

`python -m tools.parity.trl_program <work.json> <result.json>`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.parity.found import Found, watched, whole
from tools.parity.model import TEACHER, keep_precision, says
from tools.parity.processes import in_processes
from tools.parity.program import measure
from tools.parity.recorded import ParityCase, RecordedEpisode, settled
from tools.parity.tasks import task
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.metric_names import NATIVE
from xp.backends.trl.worker.process import Ranks
from xp.backends.trl.worker.rollout import TASK_ID
from xp.episode.advantages import DISTILL_KL, without_variance
from xp.episode.rewards import Overlong
from xp.worker.importance import METRICS as OF_WEIGHTS
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    from xp.backends.trl.worker.process import quiet_trainer

    quiet_trainer(1)
    measure(argv, updates)


def updates(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Found:
    """Run one rollout step of the case through the trainer; raises XpError if one of several processes fails."""
    if case.num_ranks == 1:
        return _updates(case, episodes, model, scratch)
    import torch

    from xp.lib.loopback import HOST, free_port

    group = {
        "WORLD_SIZE": str(case.num_ranks),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(free_port()),
    }

    def run(rank: int) -> Found:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ |= {
            **group,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ACCELERATE_USE_CPU": "true",
        }
        found = _merged(_updates(case, episodes, model, scratch))
        torch.distributed.barrier()
        return found

    return in_processes(run, case.num_ranks, scratch)


def _merged(own: Found) -> Found:
    """Merges the ranks: DDP has one gradient, that of the mean of their losses."""
    import torch

    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, (own.advantages, own.losses, own.members))
    advantages, losses, members = (
        list(zip(*one, strict=True)) for one in zip(*shares, strict=True)
    )
    return replace(
        own,
        advantages=[sum(advantage) for advantage in advantages],
        losses=[fmean(loss) for loss in losses],
        members=[[at for share in member for at in share] for member in members],
    )


def _updates(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Found:
    trainer = _trainer(case, episodes, model, scratch)
    if case.precision == "float64":
        teacher = trainer._xp_teacher and trainer._xp_teacher.model
        for one in (trainer.model, trainer.ref_model, teacher):
            if one is not None:
                keep_precision(one.double())
    found = Found([0.0] * len(episodes), [], [], [], {}, [])
    trained = {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}
    found.start.update({name: whole(weight) for name, weight in trained.items()})
    of_tokens = _watch_losses(trainer, episodes, found)
    with watched(found, lambda: trained):
        trainer.train()
    if case.rule.distill is not None:
        found.advantages[:] = [value for at in range(len(episodes)) for value in of_tokens[at]]
    lines = [line for line in trainer.state.log_history if "loss" in line]
    for name, ours in NATIVE.items():
        values = [line[name] for line in lines if name in line]
        if values:
            found.reported[ours] = fmean(values)
    weighed = trainer._xp_log._episodes
    measured = (DISTILL_KL, *OF_WEIGHTS, "training/logprob_gap")
    found.reported.update({name: weighed[name] for name in measured if name in weighed})
    return found


def _trainer(
    case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
) -> Any:
    from transformers import AutoTokenizer

    from xp.backends.trl.worker.steps import TRLStepLog
    from xp.backends.trl.worker.train import make_trainer
    from xp.episode.tokens import ChatTokens

    config = TRLTrainConfig.from_json(case.config)
    own = {"output_dir": str(scratch), "save_strategy": "no", "use_vllm": False}
    algorithm = config.spec.algorithm
    if algorithm.distill is not None:
        teacher = {"teacher": str(model.with_name(TEACHER)), "revision": None}
        algorithm = algorithm.model_copy(
            update={"distill": algorithm.distill.model_copy(update=teacher)}
        )
    policy = config.spec.model.model_copy(update={"path": str(model), "revision": None})
    spec = config.spec.model_copy(update={"algorithm": algorithm, "model": policy})
    config = replace(config, spec=spec, grpo={**config.grpo, **own})
    tokenizer = AutoTokenizer.from_pretrained(model)
    order = [task(group) for group in dict.fromkeys(episode.group for episode in episodes)]
    recorded: Any = RecordedRun(case, episodes, config)
    trainer = make_trainer(
        config, {}, ChatTokens(tokenizer), order, TRLStepLog(config, None), recorded
    )
    if algorithm.is_corrected:
        # For the correction TRL would send its weights to vLLM; here the batch has an engine's log-probabilities.
        trainer._last_loaded_step = 0
    return trainer


class RecordedRun:
    """A `rollout_func` for TRL that returns recorded episodes.

    Args:
        case: says which episodes are left out.
        episodes: the batch; the nth prompt of a task gets the nth of its group.
        config: has xp's rules of rewards and of the filter.
    """

    def __init__(
        self, case: ParityCase, episodes: Sequence[RecordedEpisode], config: TRLTrainConfig
    ) -> None:
        self._case = case
        self._episodes = episodes
        self._config = config

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        """Recorded episodes in the form in which xp.backends.trl.worker.rollout.Rollouts returns played ones."""
        groups: dict[str, list[RecordedEpisode]] = defaultdict(list)
        for episode in self._episodes:
            groups[str(episode.group)].append(episode)
        ranks = Ranks()
        shares = ranks.gather([prompt[0][TASK_ID] for prompt in prompts])
        whole_batch = [groups[task].pop(0) for share in shares for task in share]
        first = sum(len(share) for share in shares[: ranks.number])
        played = whole_batch[first : first + len(prompts)]
        rewards = [settled(one, Overlong.of(self._config.spec)) for one in played]
        flat = without_variance(rewards, [str(one.group) for one in played])
        flat = [self._config.spec.algorithm.zero_variance_filter and one for one in flat]
        return {
            "prompt_ids": [list(one.prompt_ids) for one in played],
            "completion_ids": [list(one.response_ids) for one in played],
            "logprobs": [_said(trainer.model, one, self._case.rule.temperature) for one in played],
            "env_mask": [
                [0] * len(one.mask)
                if is_flat
                else list(one.trained(self._case.rule.mask_truncated))
                for one, is_flat in zip(played, flat, strict=True)
            ],
            "settled": rewards,
            "episodes": list(range(len(played))),
        }


def _said(model: Any, episode: RecordedEpisode, temperature: float) -> list[float]:
    """The engine's log-probabilities, which the recorded batch has relative to the policy's."""
    import torch

    with torch.no_grad():
        own, _ = says(model, episode, temperature)
    said: list[float] = (own + own.new_tensor(episode.noise)).tolist()
    return said


def _watch_losses(
    trainer: Any, episodes: Sequence[RecordedEpisode], found: Found
) -> dict[int, list[float]]:
    """Each micro-batch's episodes, advantages and loss; an update is as many as it accumulates.

    Returns:
        Advantages of the trained tokens of each episode, filled in training, if a token has its own.
    """
    of_tokens: dict[int, list[float]] = {}
    places = {episode.response_ids: at for at, episode in enumerate(episodes)}
    compute = trainer._compute_loss
    count = trainer.args.gradient_accumulation_steps
    seen = 0

    def watching(model: Any, inputs: Any) -> Any:
        nonlocal seen
        if seen % count == 0:
            found.members.append([])
            found.losses.append(0.0)
        seen += 1
        loss = compute(model, inputs)
        found.losses[-1] += float(loss.detach())
        names = ("completion_ids", "completion_mask", "tool_mask", "advantages")
        for ids, mask, is_own, advantage in zip(*(inputs[name] for name in names), strict=True):
            at = places[tuple(ids[mask > 0].tolist())]
            found.members[-1].append(at)
            if advantage.dim():
                of_tokens[at] = advantage[mask * is_own > 0].tolist()
            else:
                found.advantages[at] = float(advantage)
        return loss

    trainer._compute_loss = watching
    return of_tokens


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
