"""The Python interface: what `import xp` offers. The command line uses the same functions."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xp.composition import compose as compose_overrides
from xp.errors import ExitCode, XpError
from xp.execution.held_out import HeldOutResult
from xp.execution.record import read_record, status_of
from xp.planning.plan import Plan, build_plan, new_run_id
from xp.spec import RunSpec

if TYPE_CHECKING:
    from xp.results.evaluation.paired import PairedComparison

OUTPUTS: Final = "outputs"


def compose(*overrides: str, config_dirs: Sequence[Path | str] = ()) -> RunSpec:
    """The spec of a command line: `compose("env=gsm8k", "training.num_steps=20")`.

    Args:
        overrides: `group=option` and `key=value`, as on the command line.
        config_dirs: directories of your own options.

    Raises:
        XpError: CONFIG, with all faults and how to fix them.
    """
    return compose_overrides(overrides, [Path(directory) for directory in config_dirs])


class PlannedRun:
    """A plan, which a notebook shows as `xp plan` does. Nothing has started."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __repr__(self) -> str:
        from xp.cli.display import show_plan

        text = StringIO()
        with redirect_stdout(text):
            show_plan(self.plan, Path(self.plan.spec.outputs), with_files=False)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def plan(spec: RunSpec) -> PlannedRun:
    """Plans a run; raises XpError(PLAN) with every reason why it cannot run."""
    return PlannedRun(build_plan(spec, new_run_id(spec)))


def run(spec: RunSpec) -> Run:
    """Runs a spec as the command line does, with its output; returns at the end, or with `launcher.detach` when the
    launcher has the run.

    Raises:
        XpError: a stage failed, or the spec is refused; `error.code` is the command's exit code.
    """
    from xp.cli.run_plans import run_plan

    planned = build_plan(spec, new_run_id(spec))
    run_plan(planned)
    return Run(Path(spec.outputs) / "runs" / planned.run_id)


def load(name: str, outputs: Path | str = OUTPUTS) -> Run:
    """A run by its name, the beginning of its name, or its directory; raises XpError(RUN_DIR) if there is none."""
    from xp.execution.named import run_directory

    return Run(run_directory(Path(outputs), name))


def runs(*names: str, outputs: Path | str = OUTPUTS) -> Any:
    """A row for each run, by environment, best first: those with these names or beginnings, or all runs without a name.

    Returns:
        A pandas.DataFrame; without pandas a list of mappings. Columns: those of `xp runs compare`, and the keys in
        which the runs differ.
    """
    from xp.execution.leaderboard import PLAIN, leaderboard

    rows = leaderboard(Path(outputs), names)
    return _table(
        [{name: getattr(row, name) for name in PLAIN} | dict(row.differs) for row in rows]
    )


def evaluate(
    *words: str, config_dirs: Sequence[Path | str] = (), again: bool = False
) -> list[dict[str, Any]]:
    """Plays held-out episodes as `xp eval` does: `evaluate("run=RUN")`, `evaluate("env=gsm8k", "model=DIR")`.

    Args:
        words: as after `xp eval`.
        config_dirs: directories of your own options.
        again: whether recorded episodes are played again.

    Returns:
        For each model and environment the summary, as `xp eval --json` prints it.

    Raises:
        XpError: as the command.
    """
    from xp.cli.evaluation import evaluations
    from xp.results.evaluation.driver import Allowance

    chosen = evaluations(
        words, [Path(directory) for directory in config_dirs], Allowance(), again=again
    )
    return [evaluation.run(again=again) for evaluation in chosen]


def compare(
    first: str | Path | Run,
    second: str | Path | Run,
    outputs: Path | str = OUTPUTS,
    margin: float | None = None,
) -> PairedComparison:
    """Compares two runs or evaluations, task by task (`xp runs compare --paired`).

    Args:
        first: a run; what `load` takes (`RUN@0`: before training); or the name of an evaluation.
        second: likewise.
        outputs: the outputs root of names; a run and a directory have their own.
        margin: largest difference of the mean reward that counts as equivalent. None means `eval.margin`.

    Raises:
        XpError: PLAN if tasks or rewards differ.
    """
    from xp.results.evaluation.records import evaluation_directory
    from xp.results.evaluation.results import compare_named, named, whole_names
    from xp.results.evaluation.settings import default_margin

    sides = []
    for side in (first, second):
        word = str(side.directory if isinstance(side, Run) else side)
        root = Path(outputs)
        if "/" in word and evaluation_directory(root, word) is None:  # OUTPUTS/runs/RUN
            root = load(word.partition("@")[0]).directory.parent.parent
            word = Path(word).name
        names = whole_names(root, [word])
        if len(names) != 1:
            raise XpError(f"{word}: {len(names)} runs or evaluations match this name; expected one")
        sides.append(named(root, names[0]))
    return compare_named(sides[0], sides[1], default_margin() if margin is None else margin)


class Episodes:
    """The episodes of a run: an iteration gives the record of each (docs/records.md, "Trajectories"), in the order of
    attempts and stages.

    Args:
        directory: OUTPUTS/runs/RUN.
    """

    def __init__(self, directory: Path) -> None:
        from xp.results.report.episodes import EpisodeIndex

        self._index = EpisodeIndex(directory)
        self._index.refresh()

    def __len__(self) -> int:
        return len(self._index.entries)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self._index.records(range(len(self)))

    @property
    def table(self) -> Any:
        """The numbers of each episode without its text: a pandas.DataFrame, or a list of mappings."""
        return _table([{"task": row.task, **row._asdict()} for row in self._index.entries])


class Run:
    """A run on disk; every property reads the files again.

    Args:
        directory: OUTPUTS/runs/RUN.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def status(self) -> str:
        """Status as in `runs list`; a cluster is not asked."""
        return status_of(self.directory, read_record(self.directory))

    @property
    def spec(self) -> RunSpec:
        """The spec of the last attempt."""
        from xp.composition.points import validated
        from xp.execution.leaderboard import spec_of

        return validated(
            spec_of(self.directory, len(read_record(self.directory).attempts)), self.name
        )

    @property
    def metrics(self) -> Any:
        """The lines of the training, one for each step (docs/metrics.md): a pandas.DataFrame, or a list of
        mappings."""
        from xp.episode.metrics_file import read_metrics

        return _table(read_metrics(self.directory / "metrics.jsonl", "train"))

    def episodes(self) -> Episodes:
        """The episodes: their records by iteration, and `.table`."""
        return Episodes(self.directory)

    @property
    def held_out(self) -> dict[str, HeldOutResult]:
        """`before` and `after` training -> result. Empty means that it was not evaluated."""
        from xp.execution.held_out import held_out

        return held_out(self.directory)

    @property
    def model_path(self) -> Path:
        """Hugging Face directory of the trained model.

        Raises:
            XpError: RUN_DIR if there is none.
        """
        path = self.directory / "model"
        if not path.is_dir():
            raise XpError(f"{self.name} has no model: it is {self.status}", ExitCode.RUN_DIR)
        return path

    @property
    def verdict(self) -> str:
        """The verdict of `xp runs diagnose`, one of `xp.results.evaluation.verdict.RunVerdict`."""
        from xp.results.evaluation.verdict import diagnose

        return diagnose(self.directory, read_record(self.directory)).verdict

    def __repr__(self) -> str:
        return f"<xp.Run {self.name}: {self.status}>"

    def _repr_html_(self) -> str:
        from xp.cli.progress import curves
        from xp.execution.progress import progress_of

        progress = progress_of(self.directory, read_record(self.directory))
        lines = [
            f"held-out reward {key}: {result.reward_mean:.3f}"
            for key, result in self.held_out.items()
        ]
        if progress is not None:
            lines += curves(progress)
        return f"<pre>{html.escape(chr(10).join((repr(self), *lines)))}</pre>"


def _table(rows: list[dict[str, Any]]) -> Any:
    """A DataFrame; without pandas, the rows."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
