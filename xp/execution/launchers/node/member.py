"""Runs a stage's program on one of its nodes, or in a container: `python -m xp.execution.launchers.node.member JOB_SPEC MAIN`.

MAIN is `address:port` of the main node. The exit code is the program's. If the program failed by itself, a file beside
the log records it; the codes of nodes that are then stopped are not relevant.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.files import write_files
from xp.execution.launchers.node.job_spec import SHARED, JobSpec
from xp.execution.launchers.node.log import LogStream, drain
from xp.execution.launchers.node.program import SignalHandler, exit_code, redactor_of, start
from xp.execution.launchers.node.ray_cluster import run_in_ray
from xp.lib.atomic import write_atomically
from xp.lib.reading import config_of
from xp.worker.nodes import NUMBER, Nodes


def main(argv: Sequence[str]) -> int:
    path, main_node = argv
    ending = SignalHandler()
    number = int(os.environ.get(NUMBER) or os.environ.get("SLURM_PROCID", "0"))
    try:
        code = _run(config_of(Path(path), JobSpec.from_json), main_node, number, ending)
    except (XpError, OSError) as error:
        print(f"xp: node {number}: {error}", file=sys.stderr, flush=True)
        code = int(getattr(error, "code", ExitCode.RUNTIME))
    if code and not ending.has_begun:
        record = json.dumps({"code": code, "ended": time.time()}) + "\n"
        write_atomically(Path(path).with_name(f"node_{number}.json"), record)
    return code


def _run(spec: JobSpec, main_node: str, number: int, ending: SignalHandler) -> int:
    spread = spec.spread
    assert spread is not None
    if not Path(spec.root).is_dir():
        raise XpError(f"{spec.root} is not on this node: {SHARED}", ExitCode.RUNTIME)
    write_files(spec.files, Path(spec.root))
    if spread.is_contained:
        os.environ.update(spec.runtime.image_checkouts)
    address, _, port = main_node.rpartition(":")
    nodes = Nodes(spread.count, number, address, int(port))
    if spread.ray_token is not None:
        return run_in_ray(spec, nodes, ending, lambda more: _play(spec, ending, more))
    return _play(spec, ending, {} if nodes.count == 1 else nodes.variables())


def _play(spec: JobSpec, ending: SignalHandler, more: Mapping[str, str]) -> int:
    """Runs the program to its end, with redacted output."""
    process = start(spec, spec.argv, more)
    ending.of(process, spec.grace_s)
    stream = LogStream(sys.stdout.buffer, redactor_of(spec), lambda _: None, on_screen=False)
    drain(process, stream)
    stream.close()
    return exit_code(process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
