"""Hyperparameter search by Optuna: one trial after the other, each a whole run.

Hydra reads the search space (`interval(1e-4, 1e-3)`, `choice(4, 8)`, `tag(log, interval(...))`); Optuna proposes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xp.composition.overrides import parse
from xp.composition.points import Point, compose
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.packages import require

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

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
    objective: Callable[[Point], float],
) -> None:
    """Runs trials; what Optuna learned is kept in the directory, and a repeated search continues from it.

    Args:
        overrides: of every trial; at least one of them is a range to search.
        config_dirs: of the user's own options.
        directory: for Optuna's database and the best trial (`optimization_results.yaml`).
        num_trials: runs to start.
        objective: runs one point and returns what is to be maximized.

    Raises:
        XpError: Optuna is not installed (RUNTIME), nothing is to be searched, or what the objective raised.
    """
    require("a search", "optuna")
    ranges, fixed = _checked_ranges(overrides, config_dirs)
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    if not sys.stderr.isatty():
        optuna.logging.disable_default_handler()  # its lines have colours
    database = directory.absolute() / DATABASE
    if "?" in str(database):  # it begins the options of an address
        raise XpError(f"outputs: the path of a search must not have ?; got {database.parent}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}; outputs=DIR names another directory"
        raise XpError(text, ExitCode.RESOURCE) from None
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{database}", study_name="search", direction="maximize", load_if_exists=True
        )
        for _ in range(num_trials):
            trial = study.ask()
            values = {override.key_or_group: _proposed(trial, override) for override in ranges}
            words = [*fixed, *(f"{key}={value}" for key, value in values.items())]
            try:
                reward = objective(Point(tuple(words), compose(words, config_dirs)))
                if not isfinite(reward):
                    raise XpError(f"the trial {' '.join(words)} has the reward {reward}", ExitCode.UNHEALTHY)
            except XpError:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                raise
            study.tell(trial, reward)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise XpError(f"{database}: {reason}", ExitCode.RESOURCE) from error
    best = {"name": "optuna", "best_params": study.best_params, "best_value": study.best_value}
    write_atomically(directory / "optimization_results.yaml", yaml.safe_dump(best))


def _proposed(trial: Any, override: Override) -> Any:
    """The value of a range that Optuna proposes for a trial."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    key, value = override.key_or_group, override.value()
    if isinstance(value, ChoiceSweep) or (isinstance(value, RangeSweep) and value.shuffle):
        return trial.suggest_categorical(key, sorted(override.sweep_string_iterator()))
    assert isinstance(value, (IntervalSweep, RangeSweep))  # Hydra has no other kind
    low, high = value.start, value.end if isinstance(value, IntervalSweep) else value.stop
    how: dict[str, Any] = {"step": value.step} if isinstance(value, RangeSweep) else {"log": "log" in value.tags}
    if all(isinstance(one, int) for one in (low, high, how.get("step", 1))):
        return trial.suggest_int(key, low, high, **how)
    return trial.suggest_float(key, low, high, **how)


def _checked_ranges(overrides: Sequence[str], config_dirs: Sequence[Path]) -> tuple[list[Override], list[str]]:
    """The ranges, and the other overrides. Each value of each range is composed alone, the others at their first, so
    that an error is reported before anything runs."""
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
    return [override for override, _ in spaces], fixed


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
