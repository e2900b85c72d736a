"""Starts training on several processes, and the vLLM server if engines have their own accelerators.

    python -m xp.backends.trl.worker.launch <config.json> [<accelerate.yaml>]

The processes are `accelerate launch --config_file <accelerate.yaml> -m xp.backends.trl.worker.train <config.json>`; the
exit code is that of the first one that failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from xp.backends.trl.worker import train
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import bind_on_one_machine
from xp.lib.load import import_large
from xp.lib.reading import config_of
from xp.worker.engines.key_check import KEY
from xp.worker.engines.server import URL, running, split_devices
from xp.worker.nodes import Nodes
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file; raises SystemExit with a process's own code."""
    path, *accelerate = argv
    config = config_of(Path(path), TRLTrainConfig.from_json)
    with ExitStack() as stack:
        bind_on_one_machine()
        if config.server is not None:
            _serve(stack, config)
        if accelerate:
            launch_processes(accelerate[0], "xp.backends.trl.worker.train", path)
        else:
            train.main([path])


def _serve(stack: ExitStack, config: TRLTrainConfig) -> None:
    """Starts a server on the accelerators after those that train."""
    server = config.server
    assert server is not None
    devices = server_devices = ""
    if server.num_accelerators:
        devices, server_devices = split_devices(config.num_processes, server.num_accelerators)
    log = Path(config.stage_dir) / "vllm.log"
    os.environ[URL], os.environ[KEY] = stack.enter_context(
        running(server, config.start_model, server_devices, log)
    )
    os.environ["CUDA_VISIBLE_DEVICES"] = devices


def launch_processes(config_file: str, program: str, path: str) -> None:
    """Runs a program on several processes, by accelerate; raises SystemExit with the code of the first that failed."""
    import_large("accelerate.commands.launch")
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    words = ["--config_file", config_file]
    nodes = Nodes.here(os.environ)
    if nodes is not None:  # the agents of several machines meet at the main node
        words += ["--rdzv_backend", "static", "--num_machines", str(nodes.count)]
        words += ["--machine_rank", str(nodes.number), "--main_process_ip", nodes.address]
        words += ["--main_process_port", str(nodes.port)]
    arguments = launch_command_parser().parse_args([*words, "-m", program, path])
    try:
        launch_command(arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        code = failure.exitcode
        raise SystemExit(code if code >= 0 else 128 - code) from None
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
