"""Health of a run's environments: void and retried episodes by cause, restarts, and the slowest calls."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.envs.server_events import ServerReports
from xp.episode.outcome import EpisodeStatus
from xp.episode.trajectory import TRAIN
from xp.errors import ExitCode
from xp.execution.tool_use import ToolCount
from xp.lib.reading import is_finite, objects_of
from xp.lib.text import counted

MAX_CAUSES: Final = 5
"""Largest number of causes that are described."""
NUM_SLOWEST: Final = 3
COPY: Final = re.compile(r"[^\s\"(]*/attempt_\d+/code/")
"""Beginning of a path in a run's copy of the user's code."""
MAX_REASON: Final = 200


@dataclass
class _Cause:
    """Faults of one type in one call."""

    reason: str
    """The first one."""
    num_void: int = 0
    num_retried: int = 0


class HealthCount:
    """Counts the faults and the seconds in trajectories, one record at a time."""

    def __init__(self) -> None:
        self._num_episodes = self._num_void = self._num_retried = 0
        self._causes: dict[tuple[str, str, str], _Cause] = {}
        """Counts by environment, call and type of the fault."""
        self._slowest: dict[tuple[str, str], float] = {}

    def add(self, record: Any) -> None:
        """Counts one record; a malformed one is skipped."""
        try:
            env = str(record["env"])
            outcome = record["outcome"]
            faults = [(str(call), str(reason)) for call, reason in outcome.get("faults", ())]
            is_void = outcome["status"] == EpisodeStatus.VOID
            reason = str(outcome["void_reason"])
            names = Counter[int]()
            seconds = dict(enumerate(record["env_s"])) | {-1: record["open_s"]}
            calls = {
                call["turn"]: str(call["name"]) for call in record["tool_calls"] if "name" in call
            }
            names.update(call["turn"] for call in record["tool_calls"])
        except (LookupError, TypeError, ValueError, AttributeError):
            return
        if is_void and faults and faults[-1][1] == reason:
            last = faults.pop()
        else:
            last = "", reason
        self._num_episodes += 1
        self._num_void += is_void
        self._num_retried += bool(faults) and not is_void
        for call, text in faults:
            self._cause(env, call, text).num_retried += 1
        if is_void:
            self._cause(env, *last).num_void += 1
        for turn, value in seconds.items():
            # The seconds of a turn are those of its only call.
            if is_finite(value) and (turn < 0 or names[turn] == 1):
                key = (env, calls.get(turn, "" if turn >= 0 else "opening"))
                self._slowest[key] = max(value, self._slowest.get(key, 0.0))

    def _cause(self, env: str, call: str, reason: str) -> _Cause:
        return self._causes.setdefault((env, call, reason.partition(":")[0]), _Cause(reason))

    def lines(self, run: Path) -> list[str]:
        """Description of the health, with what the run's servers reported; empty without episodes and reports. A file
        of the user's has its path within the run's copy of the code."""
        return [COPY.sub("", line) for line in self._lines(run)]

    def _lines(self, run: Path) -> list[str]:
        servers = ServerReports.of(run)
        reports = dict(servers.faults)
        locations = servers.locations
        restarts = servers.restarts
        if not self._num_episodes and not reports and not restarts:
            return []
        lines = [
            f"{self._num_void} of {counted(self._num_episodes, 'episode')} void, {self._num_retried} more repeated on a"
            f" fresh session, {counted(restarts.total(), 'restart')} of servers"
        ]
        causes = sorted(
            self._causes.items(), key=lambda item: -item[1].num_void - item[1].num_retried
        )
        for (env, call, _), cause in causes[:MAX_CAUSES]:
            numbers = f"{cause.num_void} void, {cause.num_retried} retried"
            lines.append(f"{env} {call}: {cause.reason[:MAX_REASON]} ({numbers})")
            report = reports.pop((env, call), None) or reports.pop((env, f"{call}_async"), None)
            location = locations.get((env, call))
            if report:
                lines += _indented(report["text"])
            elif location:
                lines.append(f"  {call} is defined in {location}")
        if len(causes) > MAX_CAUSES:
            lines.append(counted(len(causes) - MAX_CAUSES, "more cause"))
        for (env, call), report in list(reports.items())[:MAX_CAUSES]:
            what = "raised" if report["event"] == "raised" else "was slow"
            lines += [f"{env} {call}: {what}", *_indented(report["text"])]
        lines += [
            f"{env}: server restarted {counted(num, 'time')}: it {text}"
            for (env, text), num in restarts.items()
        ]
        slowest = sorted(self._slowest.items(), key=lambda item: -item[1])[:NUM_SLOWEST]
        named = [
            f"{env} {call or 'answer'} {seconds:.2g} s{f' ({locations[env, call]})' if (env, call) in locations else ''}"
            for (env, call), seconds in slowest
        ]
        if named:
            return [*lines, f"slowest calls: {', '.join(named)}"]
        return lines


class EpisodeCount:
    """Counts the episodes of a run: those of its training for the use of tools, all for the environments' health."""

    def __init__(self) -> None:
        self.tools = ToolCount()
        self.health = HealthCount()

    @staticmethod
    def of(run: Path) -> EpisodeCount:
        """All trajectories of a run, without incomplete lines. Raises XpError as `objects_of` does."""
        count = EpisodeCount()
        for file in sorted(run.glob("attempt_*/*/trajectories/*.jsonl")):
            for record in objects_of(file, ExitCode.RUN_DIR, below=run):
                count.add(file, record)
        return count

    def add(self, file: Path, record: Any) -> list[str]:
        """Counts one record of a file, and returns the names of a training's calls; a malformed one is skipped."""
        self.health.add(record)
        if file.parts[-3] == TRAIN:
            return self.tools.add(file, record)
        return []


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
