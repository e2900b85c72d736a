"""Record of what happens to the servers of a stage's environments, and its reading by other commands."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode
from xp.lib.reading import objects_of
from xp.lib.secrets.redaction import Redactor, secret_values

VARIABLE: Final = "XP_SERVER_EVENTS"
"""Variable with the file of the record, for child processes too. Without it nothing is recorded."""
FILE: Final = "environment.jsonl"
_log = logging.getLogger(__name__)


class ServerEvents:
    """Writes the events of one environment's server.

    Args:
        env: name of the environment.
        environ: variables with the file of the record.
        hidden: values that are masked, beside those of variables that look like secrets.
    """

    def __init__(self, env: str, environ: Mapping[str, str], hidden: Iterable[str]) -> None:
        self._env = env
        self._file = environ.get(VARIABLE)
        self._redactor = Redactor([*hidden, *secret_values(environ)])

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event, and logs an exception or a late call."""
        text = self._redactor.redact(event.get("text", ""))
        if event["event"] in ("raised", "late"):
            _log.warning("environment %s, %s:\n%s", self._env, event["call"], text)
        if self._file:
            line = json.dumps({**event, "env": self._env, "text": text})
            with open(self._file, "a", encoding="utf-8") as record:
                record.write(f"{line}\n")


@dataclass(frozen=True)
class ServerReports:
    """What the servers of a run's environments reported."""

    faults: Mapping[tuple[str, str], Mapping[str, Any]]
    """Environment and call -> its first exception, or its first late call."""
    locations: Mapping[tuple[str, str], str]
    """Environment and call -> file and line of its definition."""
    restarts: Counter[tuple[str, str]]
    """Numbers of restarts, by environment and reason."""

    @staticmethod
    def of(run: Path) -> ServerReports:
        """Those of all stages of a run. Raises XpError as `objects_of` does."""
        events: list[dict[str, Any]] = []
        for file in sorted((*run.glob(f"attempt_*/*/{FILE}"), *run.glob(FILE))):
            events += objects_of(file, ExitCode.RUN_DIR, below=run)
        faults = {
            (event["env"], event["call"]): event for event in reversed(events) if "call" in event
        }
        locations = {
            (event["env"], call): location
            for event in events
            for call, location in event.get("places", {}).items()
        }
        restarts = Counter(
            (event["env"], event["text"]) for event in events if event["event"] == "restarted"
        )
        return ServerReports(faults, locations, restarts)
