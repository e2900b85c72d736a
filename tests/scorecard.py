"""Prints how many items of the reliability scorecard are proven: `python -m tests.scorecard [pytest args]`.

A test proves an item by `@pytest.mark.scorecard(12)`; an item is proven when it has tests and all of them that ran
passed. `-m "not slow"` leaves the slow tests out, and says for which items.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Final

import pytest

ITEMS: Final = {
    1: "SIGKILL at every named point of every stage",
    2: "SIGKILL at a hundred random times",
    3: "two processes prepare the same task set",
    4: "a lock whose holder was killed",
    5: "corrupted cache",
    6: "disk full, quota reached",
    7: "read-only output directory",
    8: "SIGINT, SIGTERM, SIGHUP end the whole tree",
    9: "preparation fails for some tasks",
    10: "preparation fails for all tasks while an old set exists",
    11: "training on missing or stale tasks",
    12: "lost answer of a tool that is not idempotent",
    13: "lost answer of the call that ends the episode",
    14: "refused before execution, with Retry-After",
    15: "stalls on every request",
    17: "the server restarts during an episode",
    18: "malformed replies",
    19: "long output, byte for byte",
    20: "too many void episodes stop the run",
    21: "whatever a model writes is read without raising",
    22: "hostile tool specs",
    23: "a thousand rollouts leak nothing",
    24: "fork, spawn, event loops, 64 threads",
    25: "bad YAML",
    26: "code in configuration",
    27: "path tricks in names",
    28: "no secret on disk, in argv or in output",
    29: "the API key goes to allowed origins only",
    30: "shell and HTML injection",
    31: "local servers listen on loopback only",
    32: "launchers that fail",
    33: "backends that crash",
    34: "torn and foreign checkpoints",
    35: "offline: no traffic but the configured",
    37: "half-open connections",
    38: "sessions that expire in mid-episode",
    39: "a reply or a prompt far over its token budget",
    40: "a grader that hangs, eats memory or ends its process",
    41: "faults at random points of the whole embedded default",
    42: "a run directory of somebody else, which names jobs, processes and files",
    43: "ten thousand damaged files of every kind that is read back",
    44: "resume after a failed evaluation, and of a finished run",
    45: "outages while sessions open",
    46: "web pages, and names that resolve to loopback",
    47: "keys and loopback ports, keys in URLs",
    48: "secrets that nobody declared",
    49: "servers of a run: loopback, and nobody without the key",
    50: "rewards, losses and gradients that are not finite",
    51: "a split of 10^30 tasks",
    52: "a cached result that was changed",
    53: "control characters in foreign text",
    54: "a recipe and a run directory from elsewhere are planned without running them",
    55: "a disk that fills up within a checkpoint",
    56: "a task store that cannot be written",
    57: "a torn last line of the metrics",
    59: "a check of a slow environment",
    60: "dependencies from a lock with hashes",
    61: "signals to a run in the background",
    62: "a server that is deployed with other tasks",
    63: "what a run was told when it was resumed",
    64: "a trained model that was changed",
    65: "standard output that is lost",
}


class Card:
    """Collects the outcome of every marked test."""

    def __init__(self) -> None:
        self._items: dict[str, set[int]] = {}
        self._slow: dict[int, set[str]] = defaultdict(set)
        self._ran: set[str] = set()
        self.passed: dict[int, int] = defaultdict(int)
        self.failed: dict[int, list[str]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        unmarked = [item for item in items if not any(item.iter_markers("scorecard"))]
        config.hook.pytest_deselected(items=unmarked)
        items[:] = [item for item in items if any(item.iter_markers("scorecard"))]
        self._items = {item.nodeid: {mark.args[0] for mark in item.iter_markers("scorecard")} for item in items}
        for item in items:
            for number in self._items[item.nodeid] if item.get_closest_marker("slow") else ():
                self._slow[number].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ran.add(report.nodeid)
        for number in self._items.get(report.nodeid, ()):
            if report.when == "call" and report.passed:
                self.passed[number] += 1
            elif not report.passed:
                self.failed[number].append(f"{report.nodeid} {report.outcome}")

    def lines(self) -> list[str]:
        proven = [number for number in ITEMS if self.passed[number] and not self.failed[number]]
        lines = [f"{len(proven)}/{len(ITEMS)}"]
        for number, name in ITEMS.items():
            num_left_out = len(self._slow[number] - self._ran)
            left_out = f"{num_left_out} slow tests left out" if num_left_out else ""
            if number not in proven:
                why = "; ".join(self.failed[number][:3]) or left_out or "no test"
                lines.append(f"  open {number:2d} {name}: {why}")
            elif left_out:
                lines.append(f"  part {number:2d} {name}: {left_out}")
        return lines


def main(arguments: list[str]) -> int:
    card = Card()
    code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *(arguments or ["tests"])], plugins=[card])
    print("\n".join(card.lines()))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
