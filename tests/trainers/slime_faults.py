"""Faults planted in the batch, the arguments or the code of Slime's real update (test_slime_measure.py).

python -m tests.trainers.slime_faults FILE: the largest difference that the measure sees, by the fault's name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.parity import slime_program as parity
from tools.parity.measure import case_of, spec_of
from tools.parity.model import make_model
from tools.parity.options import NARROW_CRITIC, Option
from tools.parity.program import measured
from tools.parity.recorded import ParityCase, RecordedEpisode, batch
from xp.backends.slime.worker import means
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.backends.slime.worker.sources import open_sources
from xp.worker.tiny_model import SHIPPED

SEQUENCE = ("algorithm.loss_aggregation=sequence_mean",)
NARROW = ("algorithm.clip_low=0.01", "algorithm.clip_high=0.03")
PPO = ("algorithm=ppo", "backend.convert_model=true", *SEQUENCE, *NARROW_CRITIC)
RANKS = ("hardware.accelerators_per_node=2",)
NOTHING = "nothing"


@dataclass(frozen=True)
class Fault:
    """A fault in one of three places."""

    name: str
    overrides: tuple[str, ...] = ()
    """Option under which it shows."""
    arguments: Callable[[Any], None] = lambda _: None
    """Changes Slime's arguments."""
    episode: Callable[[RecordedEpisode], RecordedEpisode] = lambda one: one
    code: Callable[[], None] = lambda: None


def setting(**values: Any) -> Callable[[Any], None]:
    return lambda args: vars(args).update(values)


def diluted() -> None:
    means.factor = lambda _: 1.0


def scaled_twice() -> None:
    native = means.factor
    means.factor = lambda update: native(update) ** 2


def counted_over_the_step() -> None:
    native = means.count

    def count(args: Any, rollout_id: int, data: Any) -> None:
        native(args, rollout_id, data)
        means._factors[:] = [sum(means._factors) / len(means._factors)] * len(means._factors)

    means.count = count


def counted_by_rank() -> None:
    import torch

    native = means.count

    def count(args: Any, rollout_id: int, data: Any) -> None:
        reduce = torch.distributed.all_reduce
        torch.distributed.all_reduce = lambda *_, **__: None
        try:
            native(args, rollout_id, data)
        finally:
            torch.distributed.all_reduce = reduce

    means.count = count


def stale() -> None:
    native = parity._rollout_data

    def data(*args: Any) -> Any:
        actor = args[2]
        own = actor.compute_log_prob
        actor.compute_log_prob = lambda *more, **names: {
            key: [one - 0.01 for one in values] if key == "log_probs" else values
            for key, values in own(*more, **names).items()
        }
        return native(*args)

    parity._rollout_data = data


FAULTS = (
    Fault(NOTHING),
    Fault(f"{NOTHING}, sequence_mean", SEQUENCE),
    Fault(f"{NOTHING}, a narrow clip", NARROW),
    Fault("void episodes dilute the token mean", code=diluted),
    Fault("void episodes dilute the sequence mean", SEQUENCE, code=diluted),
    Fault(
        "truncated episodes dilute the sequence mean",
        (*SEQUENCE, "algorithm.mask_truncated=true"),
        code=diluted,
    ),
    Fault("left out episodes are taken off twice", SEQUENCE, code=scaled_twice),
    Fault(
        "left out episodes of another update are taken off", SEQUENCE, code=counted_over_the_step
    ),
    Fault("mask is off by one", episode=lambda one: replace(one, mask=(0, *one.mask[:-1]))),
    Fault(
        "a tool's tokens are trained on",
        episode=lambda one: replace(one, mask=(1,) * len(one.mask)),
    ),
    Fault(
        "void episode has an advantage", episode=lambda one: replace(one, reward=one.reward or 0.0)
    ),
    Fault("divisor of another aggregation", arguments=setting(calculate_per_token_loss=False)),
    Fault("clip's ends are swapped", NARROW, setting(eps_clip=0.03, eps_clip_high=0.01)),
    Fault("sign of the KL penalty", arguments=setting(kl_loss_coef=-0.05)),
    Fault(
        "temperature is forgotten", ("training.temperature=0.7",), setting(rollout_temperature=1.0)
    ),
    Fault("old log-probabilities are stale", code=stale),
    Fault("advantages are not scaled", arguments=setting(grpo_std_normalization=False)),
    Fault(
        "bonus of the entropy has the other sign",
        ("training.entropy_coef=0.01",),
        setting(entropy_coef=-0.01),
    ),
    Fault("ratio of a whole episode", NARROW, setting(advantage_estimator="gspo")),
    Fault("gradient is cut", arguments=setting(clip_grad=0.01)),
    Fault(f"{NOTHING}, two ranks", RANKS),
    Fault("left out episodes are counted by rank", RANKS, code=counted_by_rank),
    Fault(f"{NOTHING}, ppo on two ranks", (*PPO, *RANKS)),
    Fault("the critic's loss is not clipped", PPO, setting(value_clip=100.0)),
    Fault("lambda is forgotten", PPO, setting(lambd=1.0)),
    Fault("the critic has the policy's rate", PPO, setting(lr=0.0005)),
    Fault("advantages are not whitened", PPO, setting(normalize_advantages=False)),
)


def main(file: Path) -> None:
    """Each fault in a process of its own, so that none outlives its case."""
    cases = {fault.name: _case(fault) for fault in FAULTS}
    open_sources(SlimeTrainConfig.from_json(cases[NOTHING].config).command)
    parity.prepare()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch, "model"), SHIPPED)
        for number, fault in enumerate(FAULTS):
            place = Path(scratch, str(number))
            place.mkdir()
            cell = measured(
                cases[fault.name], batch(), Path(scratch, "model"), place, _planted(fault)
            )
            found[fault.name] = max(value for value in cell.values() if isinstance(value, float))
    file.write_text(json.dumps(found))


def _case(fault: Fault) -> ParityCase:
    option = Option("planted", fault.overrides)
    return case_of(option, spec_of(option, "slime", ()))


def _planted(fault: Fault) -> Any:
    def trainer(
        case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
    ) -> Any:
        arguments = parity.arguments
        updates = parity.updates

        def changed(*args: Any) -> Any:
            made = arguments(*args)
            fault.arguments(made)
            return made

        def planted(*args: Any) -> Any:
            parity.arguments = changed
            fault.code()
            return updates(*args)

        parity.updates = planted
        try:
            return parity.in_ranks(
                case,
                [fault.episode(one) for one in episodes],
                model,
                scratch,
            )
        finally:
            parity.updates = updates

    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
