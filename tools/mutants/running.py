"""Runs of pytest in forked children that hold the large libraries already, and what each test reaches."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import coverage
import psutil
import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".mutants"
# Imported before the fork: a run then starts in the tenth of a second.
LIBRARIES = "hypothesis numpy scipy.stats pydantic rich.progress pyarrow.parquet hydra omegaconf torch transformers"
# An orphan of a test becomes our child, so that it can be ended.
PR_SET_CHILD_SUBREAPER = 36


class Tree:
    """A copy of this checkout in which one file at a time is changed."""

    def __init__(self, number: int) -> None:
        self.directory = HOME / f"tree-{number}"
        self.temporary = (
            Path(os.environ.get("TMPDIR", "/tmp")) / f"xp-mutants-{os.getpid()}-{number}"
        )
        self._writes = 0
        listed = subprocess.run(
            ["git", "ls-files", "-zco", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        shutil.rmtree(self.directory, ignore_errors=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.directory / name)
        for environment in ROOT.glob(".venv*"):
            (self.directory / environment.name).unlink(missing_ok=True)
            (self.directory / environment.name).symlink_to(environment.resolve())
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def write(self, path: str, source: str) -> None:
        """Replaces a file, with a time of its own: bytecode is looked up by size and whole seconds."""
        self._writes += 1
        (self.directory / path).write_text(source)
        os.utime(self.directory / path, (self._writes, self._writes))

    def test(
        self,
        arguments: Sequence[str],
        seconds: float,
        *,
        python: str = "",
        reached: Path | None = None,
    ) -> tuple[str, str]:
        """Runs tests until one fails: ("passed" | "failed" | "timeout", the failed test).

        Args:
            python: another interpreter, in which pytest starts as a process of its own.
            reached: runs all tests, and writes each one's result, seconds and reached lines of xp to this file.
        """
        printed = HOME / f"output-{self.directory.name}"
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={self.temporary}",
            "--hypothesis-seed=0",
            "-m",
            "not slow",
        ]
        options += [] if reached else ["-x"]
        child = os.fork()
        if child == 0:
            os.setsid()
            output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(output, 1), os.dup2(output, 2)
            os.chdir(self.directory)
            os.environ["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(self.directory), os.environ.get("PYTHONPATH")))
            )
            if python:
                os.execvp(python, [python, "-m", "pytest", *options, *arguments])
            sys.path[:] = [str(self.directory), *(p for p in sys.path if p not in {"", str(ROOT)})]
            for name in [
                name for name in sys.modules if name.split(".")[0] in {"tools", "xp", "tests"}
            ]:
                del sys.modules[name]
            if reached:
                plugin = Reached(self.directory, reached)
            else:
                plugin = None
            code = pytest.main([*options, *arguments], plugins=[plugin] if plugin else [])
            if plugin:
                plugin.write()
            os._exit(code)
        deadline = time.monotonic() + seconds
        status = os.waitpid(child, os.WNOHANG)
        while status == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
            status = os.waitpid(child, os.WNOHANG)
        if status == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for orphan in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
                orphan.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)
        if status == (0, 0):
            return "timeout", ""
        code = os.waitstatus_to_exitcode(status[1])
        if code == pytest.ExitCode.USAGE_ERROR and any("::" in argument for argument in arguments):
            # The fault changed the names of cases: then all tests of their files.
            files = list(dict.fromkeys(argument.partition("::")[0] for argument in arguments))
            return self.test(files, seconds, python=python)
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "passed", ""
        test = re.search(
            r"^(?:FAILED|ERROR) (.+?)(?: - |$)", printed.read_text(errors="replace"), re.MULTILINE
        )
        return "failed", test.group(1) if test else "no test ran"


class Reached:
    """Measures, for each test, the lines that it reaches, in its own process and in its children's."""

    def __init__(self, tree: Path, path: Path) -> None:
        self.path = path
        self.tree = tree
        self.data = path.with_suffix(".data")
        self.tests: dict[str, dict[str, Any]] = {}
        settings = path.with_suffix(".rc")
        settings.write_text(
            f"[run]\ndata_file = {self.data}\nparallel = true\nsource = {tree}/xp\ncontext = ${{XP_TEST}}\n"
            "disable_warnings = no-data-collected,module-not-imported\n"
        )
        os.environ |= {"COVERAGE_PROCESS_START": str(settings), "XP_TEST": "import"}
        self.coverage = coverage.Coverage(
            data_file=str(self.data), data_suffix="own", source=[f"{tree}/xp"], config_file=False
        )
        self.coverage.start()
        self.coverage.switch_context("import")

    def _context(self, name: str) -> None:
        os.environ["XP_TEST"] = name
        self.coverage.switch_context(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._context(item.nodeid)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            self.tests.setdefault(item.nodeid, {"passed": True})["seconds"] = round(
                time.monotonic() - started, 2
            )
            self._context("import")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """What a module's fixture reaches counts for each of the module's tests."""
        test = os.environ["XP_TEST"]
        if fixturedef.scope != "function":
            self._context("fixture")
        try:
            return (yield)
        finally:
            self._context(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.tests.setdefault(report.nodeid, {})["passed"] = False

    def write(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        lines: dict[str, dict[str, set[int]]] = {}
        for file in self.data.parent.glob(f"{self.data.name}.*"):
            data = coverage.CoverageData(basename=str(file))
            data.read()
            for path in data.measured_files():
                for line, contexts in data.contexts_by_lineno(path).items():
                    for context in contexts:
                        relative = os.path.relpath(path, self.tree)
                        lines.setdefault(context, {}).setdefault(relative, set()).add(line)
            file.unlink()
        reached = {
            test: {path: sorted(found) for path, found in files.items()}
            for test, files in lines.items()
        }
        self.path.write_text(json.dumps({"tests": self.tests, "lines": reached}))


def preload() -> None:
    """Imports the large libraries, for every child."""
    for name in LIBRARIES.split():
        importlib.import_module(name)
