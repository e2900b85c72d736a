"""Signals as a program in a terminal's foreground has them, also under `nohup`; and a line on whose code ran."""

import signal
from typing import Any

from tests.real_code import real_code

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names, at the end, the trainers and engines whose own code did not run."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    terminalreporter.write_line(real_code(passed))
