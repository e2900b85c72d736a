"""An ORS environment whose server has a clock of a hundred times the speed: its sessions expire after nine seconds."""

from __future__ import annotations

import time
from types import SimpleNamespace

from openreward.environments import server

FASTER = 100

server.time = SimpleNamespace(**vars(time) | {"monotonic": lambda: FASTER * time.monotonic()})
