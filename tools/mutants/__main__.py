"""`make mutants`: plants small faults in the core, one at a time, and runs the quick tests that reach the changed line.

A random sample with a seed. Results are kept in .mutants/, so that an interrupted call goes on.
mutmut 3 changes functions only, not tables, defaults and coefficients, and takes no sample;
cosmic-ray runs one command of tests for all mutants.
"""

from __future__ import annotations

import argparse
import difflib
import json
import multiprocessing
import os
import random
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.mutants.operators import Mutant, digest, mutants
from tools.mutants.running import HOME, ROOT, Tree, preload

HERE = Path(__file__).parent
RESULTS = HOME / "results.jsonl"
# The tests of a mutant, the most specific first: their seconds together, and how many are tried before the rest.
BUDGET = 25.0
FIRST = 20


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="mutants of the sample")
    parser.add_argument("--rooms", default="", help="only these, with commas between")
    parser.add_argument("--files", default="", help="only paths that contain this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--again", action="store_true", help="run the survivors of earlier calls again"
    )
    options = parser.parse_args(argv)
    HOME.mkdir(exist_ok=True)
    preload()
    rooms, workers = (
        tomllib.loads((HERE / "rooms.toml").read_text())[name] for name in ("rooms", "workers")
    )
    workers = {
        path: one
        for path, one in workers.items()
        if "$" not in os.path.expandvars("".join(one.get("path", ())))
    }
    room_of = {
        str(path.relative_to(ROOT)): room
        for room, globs in rooms.items()
        for glob in globs
        for path in sorted(ROOT.glob(glob))
    } | dict.fromkeys(workers, "workers")
    equivalent = set(json.loads((HERE / "equivalents.json").read_text()))
    sample = [
        m
        for path in sorted(room_of)
        for m in mutants(path, (ROOT / path).read_text())
        if m.key not in equivalent
    ]
    if options.rooms:
        wanted = options.rooms.split(",")
    else:
        wanted = sorted(set(room_of.values()))
    sample = [m for m in sample if room_of[m.path] in wanted and options.files in m.path]
    total = len(sample)
    sample = random.Random(options.seed).sample(sample, min(options.count, total))
    known = _results()
    todo = [
        m
        for m in sample
        if _id(m) not in known or (options.again and known[_id(m)]["result"] == "survived")
    ]
    print(
        f"{total} mutants, seed {options.seed}: {len(sample)} sampled, {len(todo)} to run",
        flush=True,
    )
    with multiprocessing.get_context("fork").Manager() as manager:
        jobs = range(options.jobs if todo else 0)
        for step, work in ((_measure_all, _stale()), (partial(_run_all, workers), todo)):
            queue = manager.Queue()
            for item in work:
                queue.put(item)
            processes = [
                multiprocessing.get_context("fork").Process(target=step, args=(queue, number))
                for number in jobs
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
    _report(sample, _results(), room_of)
    return 0


def _id(mutant: Mutant) -> str:
    return digest((ROOT / mutant.path).read_text() + f"{mutant.start} {mutant.end} {mutant.new}")


def _results() -> dict[str, dict[str, Any]]:
    if RESULTS.exists():
        lines = RESULTS.read_text().splitlines()
    else:
        lines = []
    return {line["id"]: line for line in map(json.loads, lines)}


def _map_of(test: str) -> Path:
    return HOME / "reached" / f"{test.replace('/', '.')}.json"


def _tests() -> list[str]:
    globs = tomllib.loads((HERE / "rooms.toml").read_text())["tests"]
    return [str(path.relative_to(ROOT)) for glob in globs for path in sorted(ROOT.glob(glob))]


def _stale() -> list[str]:
    """The test files whose lines were not measured yet, or before a change of the file or of code that it reaches."""
    return [
        test
        for test in _tests()
        if not _map_of(test).exists()
        or _state(test) != json.loads(_map_of(test).read_text()).get("state")
    ]


def _state(test: str) -> dict[str, str]:
    reached = json.loads(_map_of(test).read_text())["lines"]
    called = {path for context, files in reached.items() if context != "import" for path in files}
    return {
        path: digest((ROOT / path).read_text())
        for path in sorted({test, *called})
        if (ROOT / path).exists()
    }


def _measure_all(queue: Any, number: int) -> None:
    tree = Tree(number)
    _map_of("x").parent.mkdir(exist_ok=True)
    while not queue.empty():
        test = queue.get()
        began = time.monotonic()
        result, _ = tree.test([test], 900, reached=_map_of(test))
        if not _map_of(test).exists():
            _map_of(test).write_text('{"tests": {}, "lines": {}}')
        measured = json.loads(_map_of(test).read_text())
        _map_of(test).write_text(json.dumps(measured | {"state": _state(test)}))
        print(
            f"measured {test}: {result}, {time.monotonic() - began:.0f} s, {queue.qsize()} to do",
            flush=True,
        )


class Reach:
    """Which tests reach a line, the most specific first."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.size: dict[str, int] = {}
        self.own: dict[tuple[str, str], int] = {}
        self.of_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.of_file: dict[str, set[str]] = defaultdict(set)
        for file in filter(lambda test: _map_of(test).exists(), _tests()):
            measured = json.loads(_map_of(file).read_text())
            good = {
                test: entry["seconds"]
                for test, entry in measured["tests"].items()
                if entry["passed"]
            }
            self.seconds |= good
            for context, files in measured["lines"].items():
                tests = {context} & good.keys() if context != "fixture" else good.keys()
                for test in tests:
                    self.size[test] = self.size.get(test, 0) + sum(map(len, files.values()))
                    for path, lines in files.items():
                        self.own[test, path] = self.own.get((test, path), 0) + len(lines)
                for path, lines in files.items():
                    self.of_file[path] |= tests if context != "import" else set()
                    for line in lines:
                        self.of_line[path, line] |= tests

    def tests(self, mutant: Mutant, importers: Sequence[str]) -> list[str]:
        """The tests of a line; of what an import alone runs, those of its module, or of the modules that import it."""
        found = self.of_line[mutant.path, mutant.own_line] or self.of_line[mutant.path, mutant.line]
        if not mutant.scope:
            # Who imports the module first reaches its constants; who calls it uses them.
            found = found | self.of_file[mutant.path]
        found = (
            found
            or self.of_file[mutant.path]
            or {test for path in importers for test in self.of_file[path]}
        )
        # The most specific: many lines that they reach are the module's, and some near this one are rarely reached.
        near = [self.of_line[mutant.path, line] for line in range(mutant.line - 3, mutant.line + 8)]
        rarity = {
            test: min((len(tests) for tests in near if test in tests), default=1) ** 0.5
            for test in found
        }
        cost = {
            test: rarity[test]
            * self.size[test]
            / self.own.get((test, mutant.path), 1)
            * (0.3 + self.seconds[test])
            for test in found
        }
        tests: list[str] = []
        left = BUDGET
        for test in sorted(found, key=lambda test: cost[test]):
            left = left - self.seconds[test]
            if left < 0 and tests:
                break
            tests.append(test)
        # Golden plans reach everything and are specific of nothing, but pin every value of a job.
        tests += sorted(test for test in found - {*tests} if "golden" in test)[::4]
        return tests


def _run_all(workers: dict[str, Any], queue: Any, number: int) -> None:
    tree = Tree(number)
    reach = Reach()
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("xp/**/*.py")}
    while not queue.empty():
        mutant: Mutant = queue.get()
        source = texts[mutant.path]
        module = mutant.path.removesuffix(".py").replace("/", ".")
        began = time.monotonic()
        worker = workers.get(mutant.path)
        if worker:
            parts = [worker["tests"]]
            python = str(ROOT / worker["python"])
            os.environ["PYTHONPATH"] = os.path.expandvars(os.pathsep.join(worker.get("path", ())))
        else:
            package, _, name = module.rpartition(".")
            tests = reach.tests(
                mutant,
                [
                    p
                    for p, text in texts.items()
                    if module in text or f"from {package} import {name}" in text
                ],
            )
            parts = [part for part in (tests[:FIRST], tests[FIRST:]) if part]
            python = ""
        result = "passed"
        test = ""
        num_tests = sum(map(len, parts))
        while parts and result == "passed":
            part = parts.pop(0)
            limit = 300 if python else 30 + 4 * sum(reach.seconds[test] for test in part)
            tree.write(mutant.path, mutant.apply(source))
            result, test = tree.test(part, limit, python=python)
            tree.write(mutant.path, source)
            # A slow test may fail for another reason: it must pass without the fault; else the others go on without it.
            is_slow = result == "timeout" or reach.seconds.get(test, 0) > 0.5
            if (
                result != "passed"
                and is_slow
                and tree.test([test] if test else part, limit, python=python)[0] != "passed"
            ):
                result = "passed"
                rest = [one for one in part if one != test] if test in part else []
                if rest:
                    parts.insert(0, rest)
        entry = {
            "id": _id(mutant),
            "result": "survived" if result == "passed" else "killed",
            "by": test or result,
            "key": mutant.key,
            "tests": num_tests,
            "seconds": round(time.monotonic() - began, 1),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        cost = f"{entry['seconds']:5} s {entry['tests']:4} tests"
        print(
            f"{entry['result']:8} {cost}  {mutant.line} {mutant.key[:120]}  {entry['by']}",
            flush=True,
        )


def _report(
    sample: Sequence[Mutant], results: dict[str, dict[str, Any]], room_of: dict[str, str]
) -> None:
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for mutant in sample:
        entry = results.get(_id(mutant))
        if entry is None:
            continue
        for room in (room_of[mutant.path], "all"):
            table[room][entry["result"] == "killed"] += 1
        if entry["result"] == "survived":
            source = (ROOT / mutant.path).read_text()
            diff = list(
                difflib.unified_diff(
                    source.splitlines(), mutant.apply(source).splitlines(), n=1, lineterm=""
                )
            )[2:]
            print(
                "\n"
                + "\n".join(
                    [
                        f"{mutant.path}:{mutant.line} ({entry['tests']} tests) {json.dumps(mutant.key)}",
                        *diff,
                    ]
                )
            )
    print(f"\n{'room':12}{'mutants':>9}{'killed':>8}")
    for room, (survived, killed) in sorted(
        table.items(), key=lambda row: (row[0] == "all", row[0])
    ):
        print(f"{room:12}{survived + killed:9}{killed:8}  {killed / (survived + killed):.0%}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
