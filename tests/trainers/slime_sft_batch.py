"""One update of a fine-tuning by Slime's rollout manager and training actor on the CPU, in float64.

`python -m tests.trainers.slime_sft_batch <config.json> <number of ranks>`, in the outputs root, which has the model,
the episodes and their order. Not real: what tools.parity.slime_rehearsal names, and Ray's object store.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.parity.found import Found
from tools.parity.processes import in_processes
from tools.parity.slime_actor import POLICY, Rank, made_actor
from tools.parity.slime_program import prepare
from xp.backends.slime.worker.config import SlimeSftConfig, WorkerConfig
from xp.backends.slime.worker.program import absolute_flags, write_worker
from xp.backends.slime.worker.sources import open_sources
from xp.lib.loopback import free_port
from xp.worker.slime_names import STEPS_FLAG


def main(path: Path, num_ranks: int) -> None:
    config = SlimeSftConfig.from_json(path.read_text())
    open_sources(config.command)
    prepare()
    port = free_port()
    in_processes(
        lambda rank: _update(
            config,
            Rank(
                rank,
                num_ranks,
                port,
                POLICY,
            ),
        ),
        num_ranks,
        Path.cwd(),
    )


def _update(config: SlimeSftConfig, rank: Rank) -> Found:
    from tools.parity.slime_rehearsal.megatron import double_precision

    with double_precision():
        args = _arguments(config, rank)
        actor = made_actor(args, rank)
        actor.train_actor(0, actor._get_rollout_data(_shares(args, actor)))
    return Found([], [], [], [], {}, [])


def _arguments(config: SlimeSftConfig, rank: Rank) -> Any:
    import torch
    from slime.utils.arguments import parse_args

    from tools.parity.slime_rehearsal.megatron import LOCAL

    settings = write_worker(WorkerConfig.of(config, Path.cwd(), 1))
    command = replace(config.command, flags=(*config.command.flags, STEPS_FLAG, "1"))
    sys.argv = [
        "train.py",
        *absolute_flags(command, Path.cwd()),
        "--custom-config-path",
        str(settings),
    ]
    args = parse_args()
    own = {
        "rank": rank.number,
        "world_size": rank.of,
        "data_parallel_size": rank.of,
        "params_dtype": torch.float32,
    }
    for name, value in {**LOCAL, **own}.items():
        setattr(args, name, value)
    # Megatron's dummy tokens are part of its softmax.
    args.padded_vocab_size = args.vocab_size
    return args


def _shares(args: Any, actor: Any) -> Any:
    """The ranks' shares of the first update, by Slime's rollout manager."""
    from slime.ray import rollout
    from slime.utils import data
    from slime.utils.misc import load_function

    rollout.ray = SimpleNamespace(put=lambda one: one)
    data.ray = SimpleNamespace(get=lambda one: one)
    manager = object.__new__(rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.train_parallel_config = actor.train_parallel_config
    manager.data_source = load_function(args.data_source_path)(args)
    manager.generate_rollout = load_function(args.rollout_function_path)
    manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = (
        None
    )
    manager._health_monitors = []
    return manager.generate(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
