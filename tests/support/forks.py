"""`pytest -p tests.support.forks --forks 4`: files of tests in forks of one process, which has collected and imported for all.

Processes of pytest-xdist collect and import each for itself: 80 s of CPU for four of them, 20 s for a process that is forked.
"""

from __future__ import annotations

import os
from collections import deque
from importlib import import_module
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

Places = deque[int]
"""Numbers of a file's tests among those that were collected, in order."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=1, help="processes that run files of tests")
    parser.addoption("--preload", action="append", default=[], help="a module that each fork has")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Takes the place of pytest's own loop; the tests of one file run one after the other."""
    number = session.config.getoption("--forks")
    if number < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    for module in session.config.getoption("--preload"):
        import_module(module)
    numbered = groupby(range(len(session.items)), key=lambda place: session.items[place].path)
    files = deque(deque(places) for _, places in numbered)
    workers = [Worker(session, name) for name in range(min(number, len(files)))]
    try:
        run_files(session, files, workers)
    finally:
        for worker in workers:
            worker.end()
    return True


def run_files(session: pytest.Session, files: deque[Places], workers: list[Worker]) -> None:
    """Gives each worker that has nothing to do the next file, and pytest the reports of their tests."""
    while True:
        for worker in workers:
            if files and not worker.places:
                worker.start_file(files.popleft())
        busy = {worker.connection: worker for worker in workers if worker.places}
        if not busy:
            return
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            if not worker.read_message():
                workers[workers.index(worker)] = Worker(session, worker.name + len(workers))
                if worker.places:
                    files.appendleft(worker.places)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)


class Worker:
    """A fork of this process that runs the tests of files."""

    def __init__(self, session: pytest.Session, name: int) -> None:
        self.name = name
        self.places: Places = deque()
        """Tests of its file that have not ended."""
        self._session = session
        self.connection, its_end = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=work, args=(session, its_end, name))
        self._process.start()
        its_end.close()

    def start_file(self, places: Places) -> None:
        self.places = places
        self.connection.send(list(places))

    def read_message(self) -> bool:
        """Hands a report to pytest; false if the process has crashed, which fails the test that it ran."""
        hook = self._session.config.hook
        item = self._session.items[self.places[0]]
        try:
            data = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            reason = f"its process ended with code {self._process.exitcode}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
            hook.pytest_runtest_logreport(report=report)
            data = None
        if data is not None:
            config = self._session.config
            report = hook.pytest_report_from_serializable(config=config, data=data)
            hook.pytest_runtest_logreport(report=report)
            return True
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self.places.popleft()
        return self._process.is_alive()

    def end(self) -> None:
        if self.places:
            self._process.terminate()
        else:
            self.connection.send([])
        self._process.join()


class Reporter:
    """Sends the reports of tests to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection[Any, Any]) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialize = self._config.hook.pytest_report_to_serializable
        self._connection.send(serialize(config=self._config, report=report))


def work(session: pytest.Session, connection: Connection[Any, Any], name: int) -> None:
    """Runs files until one has no tests, with output, a directory of temporary files and a terminal of its own."""
    config = session.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    terminal._tw._file = open(os.devnull, "w")  # noqa: SIM115
    directories: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    directories._basetemp = directories.getbasetemp() / f"fork{name}"
    directories._basetemp.mkdir(mode=0o700)
    config.pluginmanager.register(Reporter(config, connection))
    while places := connection.recv():
        items = [session.items[place] for place in places]
        for item, following in zip(items, [*items[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            connection.send(None)
