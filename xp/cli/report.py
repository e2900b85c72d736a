"""`python -m xp report` and `python -m xp view`: a page of runs, as one file or served to this machine's browser."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.execution.record import number_of
from xp.execution.run_directory import xp_command
from xp.lib.digest import text_digest

REPORT: Final = "report.html"
ROOM: Final = "reports"
"""Directory below the outputs root for pages of several runs."""


def report_command(args: Namespace) -> int:
    """Writes the page and prints its path."""
    if args.tokens and args.episodes == "none":
        raise XpError(
            "--tokens: a page without episodes has no tokens; set --episodes chosen or all"
        )
    runs = _named(args)
    target = args.page or _target(args.outputs, runs)
    size = write_page(runs, target, args.episodes, tokens=args.tokens)
    print(f"{target}  ({size / 1e6:.1f} MB; it opens in any browser, without a network)")
    return ExitCode.OK


def view_command(args: Namespace) -> int:
    """Serves the page of some runs, or the start page, until Ctrl-C."""
    from xp.results.report.server import serve

    serve(args.outputs, _named(args), args.port)
    return ExitCode.OK


def _named(args: Namespace) -> list[Path]:
    """The runs and evaluations of a command line."""
    from xp.execution.named import EVALUATIONS, RUNS, named_runs

    return named_runs(args.outputs, args.runs, rooms=(RUNS, EVALUATIONS))


def write_page(
    runs: Sequence[Path], target: Path, episodes: str | None = None, *, tokens: bool = False
) -> int:
    """Writes the page of some runs; returns its size in characters.

    Args:
        runs: directories of the runs.
        target: path of the file, which is written atomically.
        episodes: `none`, `chosen` or `all`. None means that it depends on the number of runs.
        tokens: whether the page has the tokens of these episodes.

    Raises:
        XpError: RUN_DIR for a directory that is not a run, or tokens of a run that was begun elsewhere; RUNTIME if its
            tokenizer is missing; RESOURCE if the file cannot be written.
    """
    from xp.lib.atomic import write_atomically
    from xp.results.report.data import report
    from xp.results.report.web import page

    title, data, chunks = report(runs, episodes, tokens=tokens)
    text = page(title, data, chunks)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    except OSError as error:
        raise XpError(f"{target}: {error.strerror or error}", ExitCode.RESOURCE) from error
    return len(text)


def _target(outputs: Path, runs: Sequence[Path]) -> Path:
    """Path of a report: in a run's own directory; for several runs, a file named after the first, with a digest of all
    names, so that reports of other runs are kept."""
    if len(runs) == 1:
        return runs[0] / REPORT
    digest = text_digest("\n".join(run.name for run in runs))[:8]
    return outputs / ROOM / f"{runs[0].name}-and-{len(runs) - 1}-more-{digest}.html"


def episodes_line(run: Path) -> str | None:
    """Directory of the last attempt's trajectories, with the command that shows one. None means that there are none."""
    stages = [directory.parents[1] for directory in run.glob("attempt_*/*/trajectories")]
    if not stages:
        return None
    command = xp_command(f"runs episode {run.name} --worst", run.parent.parent)
    return f"episodes      {max(stages, key=number_of)}/*/trajectories  ({command})"


def report_line(run: Path) -> str:
    """Path of the report, or the command that writes it."""
    if (run / REPORT).is_file():
        return f"report        {run / REPORT}"
    return f"report        not written yet: {xp_command(f'report {run.name}', run.parent.parent)}"


def write_report(run: Path, warn: Callable[[str], None]) -> None:
    """Writes the run's report; warns if that fails."""
    try:
        write_page([run], run / REPORT)
    except Exception as error:
        warn(f"no report: {type(error).__name__}: {error}")


def places_of_failed(run: Path) -> list[str]:
    """Lines with the paths of a failed run; its report is written if any episode was played."""
    line = episodes_line(run)
    if line is None:
        return []
    write_report(run, lambda _: None)
    return [line, report_line(run)]
