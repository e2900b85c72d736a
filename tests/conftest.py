"""Settings of all tests: one thread for torch, signals as in a terminal, examples of any duration."""

import gc
import os
import signal
from types import SimpleNamespace
from typing import Any

import omegaconf.omegaconf
import yaml
from hypothesis import HealthCheck, settings

from tests.support.real_code import real_code
from xp.envs.light_sdk import import_openreward

# Several processes test at the same time, and a waiting thread of OpenMP keeps its core busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without it an example that takes 200 ms fails its test, on a busy machine any example.
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Before a test module imports it with the clients of three vendors, in each process.
import_openreward()

_parsed: dict[str, Any] = {}


def parsed_once(file: Any, Loader: Any) -> Any:  # noqa: N803
    """The content of a YAML file, parsed once in a process: a third of the time of a composition is parsing."""
    text = file if isinstance(file, str) else file.read()
    if text not in _parsed:
        _parsed[text] = yaml.load(text, Loader=Loader)
    return _parsed[text]


omegaconf.omegaconf.yaml = SimpleNamespace(**{**vars(yaml), "load": parsed_once})


gc.disable()


def pytest_collection_finish() -> None:
    """The modules are there to stay: the garbage collector need not visit their objects again in each test."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names, at the end, the trainers and engines whose own code did not run."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    terminalreporter.write_line(real_code(passed))
