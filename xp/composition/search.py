"""Hyperparameter search by Optuna: one trial after the other, each a whole run.

Hydra reads the search space (`interval(1e-4, 1e-3)`, `choice(4, 8)`, `tag(log, interval(...))`); Optuna proposes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xp.composition.overrides import parse
from xp.composition.points import Point, compose, raise_faults
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.packages import require

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution

DATABASE = "trials.db"
Reward = Callable[[Point], float]
"""Function that runs a point and returns what is to be maximized."""
MAX_CHECKED = 200
"""Values of one `range` that are composed before the first trial: its first ones, and its last."""


def search(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    directory: Path,
    num_trials: int,
    reward: Reward,
) -> None:
    """Runs trials; what Optuna learned is kept in the directory, and a repeated search continues from it.

    Args:
        overrides: of every trial; at least one of them is a range to search.
        config_dirs: of the user's own options.
        directory: for Optuna's database and the best trial (`optimization_results.yaml`).
        num_trials: runs to start.
        reward: runs one point.

    Raises:
        XpError: Optuna is not installed (RUNTIME), nothing is to be searched, or what `reward` raised.
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
        text = f"{error.filename}: {error.strerror}; set outputs=DIR to another directory"
        raise XpError(text, ExitCode.RESOURCE) from None
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{database}",
            study_name="search",
            direction="maximize",
            load_if_exists=True,
        )
        for _ in range(num_trials):
            trial = study.ask(ranges)
            words = [*fixed, *(f"{key}={value}" for key, value in trial.params.items())]
            try:
                value = reward(Point(tuple(words), compose(words, config_dirs)))
                if not isfinite(value):
                    raise XpError(
                        f"the trial {' '.join(words)} has the reward {value}", ExitCode.UNHEALTHY
                    )
            except XpError:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                raise
            study.tell(trial, value)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise XpError(f"{database}: {reason}", ExitCode.RESOURCE) from error
    best = {"name": "optuna", "best_params": study.best_params, "best_value": study.best_value}
    write_atomically(directory / "optimization_results.yaml", yaml.safe_dump(best))


def _checked_ranges(
    overrides: Sequence[str], config_dirs: Sequence[Path]
) -> tuple[dict[str, BaseDistribution], list[str]]:
    """Key -> its range, and the other overrides. Each value of each range is composed alone, the others at their first,
    so that an error is reported before anything runs."""
    parsed, faults = parse(overrides)
    ranges: dict[str, BaseDistribution] = {}
    fixed = []
    for override in parsed:
        line = override.input_line or ""
        if not override.is_sweep_override():
            fixed.append(line)
            continue
        try:
            ranges[override.key_or_group] = _range(override)
        except ValueError as error:
            faults.append(f"{line}: {str(error).rstrip('.')}; write another range")
    raise_faults(faults)
    if not ranges:
        compose(fixed, config_dirs)
        raise XpError(
            "nothing to search: give a range, such as training.learning_rate='interval(1e-4,1e-3)'"
        )
    values = {key: _values(override) for key, override in ranges.items()}
    firsts = {key: some[0] for key, some in values.items()}
    for trial in (
        firsts,
        *({**firsts, key: value} for key, some in values.items() for value in some[1:]),
    ):
        try:
            compose([*fixed, *(f"{key}={value}" for key, value in trial.items())], config_dirs)
        except XpError as error:
            faults += [line for line in str(error).splitlines() if line not in faults]
    raise_faults(faults)
    return ranges, fixed


def _range(override: Override) -> BaseDistribution:
    """A range as Optuna has it; raises ValueError for one that has no values, or values that Optuna cannot draw."""
    from hydra.core.override_parser.types import (
        ChoiceSweep,
        Glob,
        IntervalSweep,
        QuotedString,
        RangeSweep,
    )
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    if isinstance(value, Glob):
        raise ValueError(
            f"a search does not support globs; name the options, {override.key_or_group}=choice(A,B)"
        )
    if isinstance(value, ChoiceSweep) or (isinstance(value, RangeSweep) and value.shuffle):
        listed = value.list if isinstance(value, ChoiceSweep) else ()
        odd = [
            choice
            for choice in listed
            if not isinstance(choice, (str, int, float, QuotedString, type(None)))
        ]
        if odd:
            raise ValueError(
                f"a searched value is a text, a number, true, false or null; got {odd[0]}"
            )
        return CategoricalDistribution(sorted(override.sweep_string_iterator()))
    assert isinstance(value, (IntervalSweep, RangeSweep))  # Hydra has no other kind
    low: Any
    high: Any
    how: dict[str, Any]
    if isinstance(value, RangeSweep):
        low, high = sorted(_ends(value.start, value.stop, value.step))
        how = {"step": abs(value.step)}
    else:
        low = value.start
        high = value.end
        how = {"log": "log" in value.tags}
    is_whole = all(isinstance(bound, int) for bound in (low, high, how.get("step", 1)))
    return (IntDistribution if is_whole else FloatDistribution)(low, high, **how)


def _ends(start: Any, stop: Any, step: Any) -> tuple[Any, Any]:
    """First and last value of Hydra's `range(start,stop,step)`, which is without `stop` as in a sweep.

    Raises:
        ValueError: it has no value.
    """
    first, end, width = (Decimal(str(number)) for number in (start, stop, step))
    count = ceil((end - first) / width) if width else 0
    if count < 1:
        raise ValueError("it has no value: LOW must be below HIGH, and the step above 0")
    return start, type(start + step)(first + (count - 1) * width)


def _values(some: BaseDistribution) -> list[Any]:
    """The values of a range that are checked; of an interval its ends, of a long range its first ones and its last."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(some, CategoricalDistribution):
        return list(some.choices[:MAX_CHECKED])
    assert isinstance(some, (FloatDistribution, IntDistribution))
    if not some.step:
        return list(dict.fromkeys((some.low, some.high)))
    last = round((some.high - some.low) / some.step)
    return [
        some.low + index * some.step
        for index in dict.fromkeys((*range(min(last, MAX_CHECKED)), last))
    ]
