"""Hyperparameter search by Optuna: it proposes values, one trial after the other, each a whole run.

The search space is written in Hydra's syntax (`interval(1e-4, 1e-3)`, `choice(4, 8)`, `tag(log, interval(...))`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from xp.compose.overrides import parse
from xp.compose.points import compose
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from xp.spec import RunSpec

DATABASE, RESULTS = "trials.db", "optimization_results.yaml"
MAX_CHECKED = 200
"""Values of one `range` that are composed before the first trial: its first ones, and its last."""
ROUNDING = 1e-9
"""Part of a step by which a range of floats may miss its upper bound."""
REFUSED = "?{}"
"""Characters of a path that have a meaning in the address of a database."""


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
        directory: for Optuna's database and the summary of the best trial (`optimization_results.yaml`).
        num_trials: runs to start.
        objective: runs one spec and gives back what is to be maximized.

    Raises:
        XpError: Optuna is not installed (RUNTIME), nothing is to be searched, or what the objective raised.
    """
    if find_spec("optuna") is None:
        raise XpError("a search needs Optuna: make setup installs it (pyproject.toml, extra optuna)", ExitCode.RUNTIME)
    if odd := sorted(set(REFUSED) & set(str(directory.absolute()))):
        raise XpError(f"outputs: the path of a search must not have {' '.join(odd)}; got {directory.absolute()}")
    _check_space(overrides, config_dirs)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        place = error.filename or directory
        raise XpError(f"{place}: {error.strerror}; outputs=DIR names another directory", ExitCode.RESOURCE) from None
    from sqlalchemy.exc import SQLAlchemyError  # type: ignore[import-untyped]

    try:
        _run(overrides, config_dirs, directory, num_trials, objective)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise XpError(f"{directory / DATABASE}: {reason}", ExitCode.RESOURCE) from error


def _run(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    directory: Path,
    num_trials: int,
    objective: Callable[[RunSpec], float],
) -> None:
    import optuna

    if not sys.stderr.isatty():
        optuna.logging.disable_default_handler()  # its lines have colours
    parsed, _ = parse(overrides)
    storage = f"sqlite:///{directory.absolute() / DATABASE}"
    study = optuna.create_study(storage, study_name="search", direction="maximize", load_if_exists=True)
    for _ in range(num_trials):
        trial = study.ask()
        words = [_proposed(one, trial) if one.is_sweep_override() else one.input_line or "" for one in parsed]
        try:
            value = objective(compose(words, config_dirs))
        except XpError:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            raise
        study.tell(trial, value)
    best = {"name": "optuna", "best_params": study.best_params, "best_value": study.best_value}
    write_atomically(directory / RESULTS, yaml.safe_dump(best, sort_keys=False, allow_unicode=True))


def _proposed(override: Override, trial: Any) -> str:
    """An override with the value that Optuna proposes."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep

    key, value = override.key_or_group, cast("Any", override.value())
    if isinstance(value, ChoiceSweep) or getattr(value, "shuffle", False):
        return f"{key}={trial.suggest_categorical(key, list(override.sweep_string_iterator()))}"
    is_interval = isinstance(value, IntervalSweep)  # does not narrow: the bounds of an interval are not None
    if is_interval:
        is_log = "log" in value.tags
        if "int" in value.tags:
            return f"{key}={trial.suggest_int(key, int(value.start), int(value.end), log=is_log)}"
        return f"{key}={trial.suggest_float(key, value.start, value.end, log=is_log)}"
    bounds = (value.start, value.stop)
    is_float = any(isinstance(one, float) for one in (*bounds, value.step))
    suggest = trial.suggest_float if is_float else trial.suggest_int
    return f"{key}={suggest(key, *bounds, step=value.step)}"


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
