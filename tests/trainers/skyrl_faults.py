"""Faults planted in the arguments or the code of SkyRL's real update (test_skyrl_measure.py): of its critic and ranks.

python -m tests.trainers.skyrl_faults FILE: the largest difference that the measure sees, by the fault's name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.parity import skyrl_program as parity
from tools.parity.measure import case_of, spec_of
from tools.parity.model import make_model
from tools.parity.options import NARROW_CRITIC, SEQUENCE_MEAN, Option
from tools.parity.program import measured
from tools.parity.recorded import ParityCase, RecordedEpisode, batch
from xp.worker.tiny_model import SHIPPED

PPO = ("algorithm=ppo", SEQUENCE_MEAN, *NARROW_CRITIC)
RANKS = ("hardware.accelerators_per_node=2",)
NOTHING = "nothing"


@dataclass(frozen=True)
class Fault:
    """A fault in one of two places."""

    name: str
    overrides: tuple[str, ...] = PPO
    """Option under which it shows."""
    native: str = ""
    """SkyRL's key and another value than xp's."""
    code: Callable[[], None] = lambda: None


def tools_are_steps() -> None:
    from xp.backends.skyrl.worker import trainer

    native = trainer.gae
    trainer.gae = lambda rewards, values, trained, *more: native(
        rewards, values, trained * 0 + 1, *more
    )


def diluted_critic() -> None:
    from xp.backends.skyrl.worker import trainer

    trainer.critic_weights = lambda trained, *_: (
        trained / trained.sum(-1, keepdim=True).clamp(min=1.0)
    )


def not_whitened() -> None:
    from xp.backends.skyrl.worker import advantages

    advantages._whitened = lambda values, mask: values * mask


def each_rank_by_itself() -> None:
    """The means of an update over this rank's episodes, as if there were no other."""
    import torch

    from xp.backends.skyrl.worker import workers

    native = workers.update_means

    @contextmanager
    def update_means(*args: Any) -> Iterator[None]:
        reduce = torch.distributed.all_reduce
        torch.distributed.all_reduce = lambda own, **_: own.mul_(torch.distributed.get_world_size())
        within = native(*args)
        within.__enter__()
        torch.distributed.all_reduce = reduce
        yield
        within.__exit__(None, None, None)

    workers.update_means = update_means


def gradients_of_one_rank() -> None:
    """Every rank trains on the first one's episodes."""
    from skyrl.backends.skyrl_train.distributed.dispatch import MeshDispatch

    native = MeshDispatch.stage_chunks
    MeshDispatch.stage_chunks = lambda *args: [
        [chunks[0]] * len(chunks) for chunks in native(*args)
    ]


FAULTS = (
    Fault(f"{NOTHING}, ppo"),
    Fault(f"{NOTHING}, ppo on two ranks", (*PPO, *RANKS)),
    Fault(f"{NOTHING}, grpo on two ranks", RANKS),
    Fault("the critic's loss is not clipped", native="trainer.algorithm.value_clip=100"),
    Fault("lambda is forgotten", native="trainer.algorithm.lambd=1.0"),
    Fault("discount is forgotten", native="trainer.algorithm.gamma=1.0"),
    Fault("the critic has the policy's rate", native="trainer.critic.optimizer_config.lr=0.0005"),
    Fault("a tool's tokens are steps", code=tools_are_steps),
    Fault("void episodes dilute the critic's mean", code=diluted_critic),
    Fault("advantages are not whitened", code=not_whitened),
    Fault("each rank has a mean of its own", RANKS, code=each_rank_by_itself),
    Fault("every rank has the same episodes", RANKS, code=gradients_of_one_rank),
)


def main(file: Path) -> None:
    """Each fault in processes of its own, so that none outlives its case."""
    import torch

    from xp.backends.skyrl.worker.rehearsal import cpu_torch

    cpu_torch.prepare_process()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch, "model"), SHIPPED)
        for number, fault in enumerate(FAULTS):
            place = Path(scratch, str(number))
            place.mkdir()
            cell = measured(
                _case(fault),
                batch(),
                Path(scratch, "model"),
                place,
                _planted(fault),
            )
            found[fault.name] = max(value for value in cell.values() if isinstance(value, float))
            print(fault.name, found[fault.name], flush=True)
    file.write_text(json.dumps(found))


def _case(fault: Fault) -> ParityCase:
    option = Option("planted", fault.overrides)
    case = case_of(option, spec_of(option, "skyrl", ()))
    if not fault.native:
        return case
    config = json.loads(case.config)
    config["native_keys"].append(fault.native)
    return replace(case, config=json.dumps(config))


def _planted(fault: Fault) -> Any:
    def trainer(
        case: ParityCase, episodes: Sequence[RecordedEpisode], model: Path, scratch: Path
    ) -> Any:
        updates = parity._updates

        def planted(*args: Any) -> Any:
            fault.code()
            return updates(*args)

        parity._updates = planted
        try:
            return parity.updates(case, episodes, model, scratch)
        finally:
            parity._updates = updates

    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
