"""Record of what happens to the servers of a stage's environments; other stages and commands read it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

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
