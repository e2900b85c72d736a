"""A Ray head of this machine that tests submit jobs to."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from contextlib import suppress

from tests.support.launching import eventually
from xp.execution.launchers.ray_head import RayHead


def ray_cluster(environ: Mapping[str, str]) -> RayHead:
    """Four CPUs and two GPUs that are only numbers; `stop` ends it.

    The dashboard answers some seconds before it knows the head's resources; until then a launcher finds no CPUs.
    """
    head = RayHead(num_cpus=4, gpus=("0", "1"), environ=environ)
    status = urllib.request.Request(
        f"{head.address}/api/cluster_status", headers={"Authorization": f"Bearer {head.token}"}
    )

    def knows_its_cpus() -> bool:
        with suppress(OSError), urllib.request.urlopen(status, timeout=30) as answer:
            return "CPU" in json.load(answer)["data"]["clusterStatus"]["loadMetricsReport"]["usage"]
        return False

    eventually(knows_its_cpus)
    return head
