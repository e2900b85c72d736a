"""Runs a stage's program on several nodes of a Ray cluster: `python -m xp.execution.launchers.node.ray_members JOB_SPEC`.

This is the program of a Ray job. It requests one bundle on each node (a placement group with STRICT_SPREAD), and starts
the member on each. TERM ends the members and their processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.errors import ExitCode
from xp.execution.launchers.node.job_spec import JobSpec
from xp.execution.launchers.node.spread import MEMBER
from xp.lib import processes
from xp.lib.loopback import free_port
from xp.lib.reading import config_of
from xp.lib.text import first_line
from xp.worker.nodes import NUMBER

POLL_S = 0.5
PLACE_S = 600.0
"""Seconds until the cluster must have free nodes."""


class Member:
    """Runs the program of one node, inside a Ray process there."""

    def address(self) -> str:
        """`address:port` of this node, with a free port."""
        import ray

        address = ray.util.get_node_ip_address()
        return f"{address}:{free_port(address)}"

    def run(self, number: int, job_spec: str, main: str, grace_s: float) -> Iterator[bytes | int]:
        """Runs the program; yields its output, and its exit code last."""
        argv = [sys.executable, "-m", MEMBER, job_spec, main]
        process = processes.start(
            argv,
            grace_s,
            env={
                **os.environ,
                NUMBER: str(number),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 65536):
            yield data
        yield process.wait()


def main(argv: Sequence[str]) -> int:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    spec = config_of(Path(argv[0]), JobSpec.from_json)
    spread = spec.spread
    assert spread is not None
    ray.init(logging_level="error", log_to_driver=False)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    needs = {"CPU": spread.num_cpus, **({"GPU": spread.num_gpus} if spread.num_gpus else {})}
    group = placement_group([needs] * spread.count, strategy="STRICT_SPREAD")
    if not group.wait(PLACE_S):
        print(
            f"xp: the Ray cluster had no {spread.count} nodes with {needs} free within {PLACE_S:g} s",
            flush=True,
        )
        return ExitCode.RUNTIME
    actor_class = ray.remote(num_cpus=spread.num_cpus, num_gpus=spread.num_gpus, max_restarts=0)(
        Member
    )
    members = [
        actor_class.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number))
        .remote()
        for number in range(spread.count)
    ]  # fmt: skip
    address = ray.get(members[0].address.remote())
    codes: dict[int, int] = {}
    for number, member in enumerate(members):
        stream = member.run.options(num_returns="streaming").remote(
            number, argv[0], address, spec.grace_s
        )
        threading.Thread(target=_follow, args=(number, stream, codes), daemon=True).start()
    while len(codes) < len(members) and not any(codes.values()) and not stop.wait(POLL_S):
        pass
    for member in members:
        with suppress(Exception):
            ray.kill(member)
    ray.shutdown()
    if stop.is_set():
        return ExitCode.TERMINATED
    return next((code for code in codes.values() if code), 0)


def _follow(number: int, stream: Any, codes: dict[int, int]) -> None:
    """Passes on the output of a node's program; records its end, even if the node is lost."""
    import ray

    code: int = 128 + signal.SIGKILL
    try:
        for reference in stream:
            value = ray.get(reference)
            if isinstance(value, int):
                code = value
            else:
                sys.stdout.buffer.write(value)
                sys.stdout.buffer.flush()
    except ray.exceptions.RayError as error:
        print(f"xp: node {number} was lost: {first_line(error)}", flush=True)
    finally:
        codes[number] = code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
