"""Hyperparameter search by Optuna, through Hydra's own sweeper: one trial after the other, each a whole run.

Hydra reads the search space (`interval(1e-4, 1e-3)`, `choice(4, 8)`, `tag(log, interval(...))`) and proposes overrides;
what they mean is decided by xp's own composition, as for any other command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.compose.groups import ROOT, with_plugins
from xp.compose.overrides import parse
from xp.compose.own_plugins import hide_foreign_plugins
from xp.compose.points import compose
from xp.compose.sources import OWN_FILES, USER_FILES, register_sources
from xp.errors import ExitCode, XpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hydra.core.override_parser.types import Override

    from xp.spec import RunSpec

DATABASE = "trials.db"
MAX_CHECKED = 200
"""Values of one `range` that are composed before the first trial: its first ones, and its last."""
ROUNDING = 1e-9
"""Part of a step by which a range of floats may miss its upper bound."""


def search(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    directory: Path,
    num_trials: int,
    objective: Callable[[RunSpec], float],
) -> None:
    """Run trials; what Optuna learned is kept in the directory, and a repeated search goes on from it.

    Args:
        overrides: of every trial; at least one of them is a range to search.
        config_dirs: of the user's own options.
        directory: for Optuna's database and Hydra's summary of the best trial (`optimization_results.yaml`).
        num_trials: runs to start.
        objective: runs one spec and gives back what is to be maximized.

    Raises:
        XpError: Optuna's sweeper is not installed (RUNTIME), nothing is to be searched, or what the objective raised.
    """
    hide_foreign_plugins()
    if find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        raise XpError(
            "a search needs Optuna's sweeper: make setup installs it (pyproject.toml, extra optuna)", ExitCode.RUNTIME
        )
    _check_space(overrides, config_dirs)

    import hydra
    import optuna
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    if not sys.stderr.isatty():
        optuna.logging.disable_default_handler()  # its lines have colours
    failures: list[XpError] = []

    def trial(_: DictConfig) -> float:
        if failures:  # Hydra counts a failed trial and goes on; a run that cannot run is told at once.
            raise failures[0]
        proposed = list(HydraConfig.get().overrides.task)
        try:
            with _outside_of_hydra():
                return objective(compose(proposed, config_dirs))
        except XpError as error:
            failures.append(error)
            raise

    settings = _settings(directory, num_trials, config_dirs)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        place = error.filename or directory
        raise XpError(f"{place}: {error.strerror}; outputs=DIR names another directory", ExitCode.RESOURCE) from None
    register_sources([])
    entry: Any = hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")(trial)
    with _command_line(["xp", "-m", *overrides, *settings]), _errors(failures, directory / DATABASE):
        entry()


@contextmanager
def _errors(failures: Sequence[XpError], database: Path) -> Iterator[None]:
    """Context manager: the first trial's own error comes first; errors of Hydra and of the database are XpErrors."""
    from hydra.errors import HydraException
    from sqlalchemy.exc import SQLAlchemyError  # type: ignore[import-untyped]

    try:
        yield
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise XpError(f"{database}: {reason}", ExitCode.RESOURCE) from error
    except Exception as error:
        if failures:
            raise failures[0] from None
        if isinstance(error, HydraException):
            raise XpError(f"the search cannot continue: {str(error).splitlines()[0]}") from error
        raise


def _settings(directory: Path, num_trials: int, config_dirs: Sequence[Path]) -> list[str]:
    """Overrides of Hydra's own configuration; raises XpError for a path that these cannot express."""
    if odd := sorted({char for char in str(directory.absolute()) if char in "?#%'\"\\"}):
        raise XpError(f"outputs: the path of a search must not have {' '.join(odd)}; got {directory.absolute()}")
    places = [f"{OWN_FILES}://{ROOT}", *(f"{USER_FILES}://{one.resolve()}" for one in with_plugins(config_dirs))]
    quoted = ",".join(f"'{place}'" for place in places)
    return [
        f"hydra.searchpath=[{quoted}]",
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        f"hydra.sweeper.n_trials={num_trials}",
        "hydra.sweeper.study_name=search",
        f"hydra.sweeper.storage='sqlite:///{directory.absolute() / DATABASE}'",
        f"hydra.sweep.dir='{directory.absolute()}'",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        # Hydra's `disabled` would also silence the warnings of everybody else in this process.
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
    ]


def _check_space(overrides: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """Compose each value of each range alone, the others at their first, so that an error is reported before anything
    runs."""
    parsed, faults = parse(overrides)
    spaces = [(override, _values(override)) for override in parsed if override.is_sweep_override()]
    faults += [fault for _, fault in spaces if isinstance(fault, str)]
    if faults:
        raise XpError("\n".join(faults))
    fixed = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
    firsts = {override.key_or_group: values[0] for override, values in spaces}
    if not spaces:
        compose(fixed, config_dirs)
        raise XpError("nothing to search: give a range, such as training.learning_rate='interval(1e-4,1e-3)'")
    trials = [firsts] + [
        {**firsts, override.key_or_group: value} for override, values in spaces for value in values[1:]
    ]
    for trial in trials:
        try:
            compose([*fixed, *(f"{key}={value}" for key, value in trial.items())], config_dirs)
        except XpError as error:
            faults += [line for line in str(error).splitlines() if line not in faults]
    if faults:
        raise XpError("\n".join(faults))


def _values(override: Override) -> list[str] | str:
    """The values of a range that are checked, as Optuna draws them (`range(1,5)` with 5); a text: the range's fault."""
    from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, QuotedString, RangeSweep

    line, key, value = override.input_line or "", override.key_or_group, override.value()
    if isinstance(value, Glob):
        return f"{line}: a search does not support globs; name the options, {key}=choice(A,B)"
    if isinstance(value, ChoiceSweep):
        if odd := [one for one in value.list if not isinstance(one, (str, int, float, QuotedString, type(None)))]:
            return f"{line}: a searched value is a text, a number, true, false or null; got {odd[0]}"
        return list(override.sweep_string_iterator())
    assert isinstance(value, (IntervalSweep, RangeSweep))  # Hydra has no other kind
    low, high = value.start, value.end if isinstance(value, IntervalSweep) else value.stop
    assert low is not None
    assert high is not None
    if low > high:
        call = "interval" if isinstance(value, IntervalSweep) else "range"
        return f"{line}: the lower bound is first; write {call}({high},{low})"
    if isinstance(value, IntervalSweep):
        if "log" in value.tags and low <= 0:
            return f"{line}: the logarithm needs a lower bound above 0; got {low}"
        return [str(one) for one in dict.fromkeys((low, high))]
    if low == high or value.step <= 0:
        return f"{line}: the range has no value; write range(LOW,HIGH), or range(LOW,HIGH,STEP) with a step above 0"
    if value.shuffle:
        return list(override.sweep_string_iterator())[:MAX_CHECKED]
    last = int((high - low) / value.step + ROUNDING)
    indices = dict.fromkeys((*range(min(last, MAX_CHECKED)), last))
    return [str(low + index * value.step) for index in indices]


@contextmanager
def _outside_of_hydra() -> Iterator[None]:
    """Hide Hydra's main function from the code of a trial, which composes with Hydra itself."""
    from hydra.core.global_hydra import GlobalHydra

    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = running


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Set sys.argv for Hydra's main function, and stop it from turning errors into its own message and exit."""
    before, sys.argv = sys.argv, argv
    full = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
