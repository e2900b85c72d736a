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

from xp.compose.groups import ROOT
from xp.compose.own_plugins import hide_foreign_plugins
from xp.compose.points import compose
from xp.compose.sources import OWN_FILES, register_sources
from xp.errors import ExitCode, XpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xp.spec import RunSpec

DATABASE = "trials.db"


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
    _check_space(overrides)

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    failures: list[XpError] = []

    def trial(_: DictConfig) -> float:
        if failures:  # Hydra counts a failed trial and goes on; a run that cannot run is told at once.
            raise failures[0]
        try:
            return objective(compose(list(HydraConfig.get().overrides.task), config_dirs))
        except XpError as error:
            failures.append(error)
            raise

    settings = _settings(directory, num_trials)
    directory.mkdir(parents=True, exist_ok=True)
    register_sources([])
    entry: Any = hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")(trial)
    with _command_line(["xp", "-m", *overrides, *settings]):
        try:
            entry()
        except Exception:
            if failures:
                raise failures[0] from None
            raise


def _settings(directory: Path, num_trials: int) -> list[str]:
    """Overrides of Hydra's own configuration; raises XpError for a path that these cannot express."""
    if odd := sorted({char for char in str(directory.absolute()) if char in "?#%'\"\\"}):
        raise XpError(f"outputs: the path of a search takes no {' '.join(odd)}; got {directory.absolute()}")
    return [
        f"hydra.searchpath=['{OWN_FILES}://{ROOT}']",
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


def _check_space(overrides: Sequence[str]) -> None:
    """Compose a trial at the first value of each range, so that an error is reported before anything runs."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep
    from hydra.errors import HydraException

    first, is_search = [], False
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise XpError(f"{text}: an override is written key=value ({str(error).splitlines()[0]})") from None
        if not override.is_sweep_override():
            first.append(text)
            continue
        is_search, value = True, override.value()
        start = value.start if isinstance(value, IntervalSweep) else next(iter(override.sweep_string_iterator()))
        first.append(f"{override.key_or_group}={start}")
    compose(first)
    if not is_search:
        raise XpError("nothing to search: give a range, such as training.learning_rate='interval(1e-4,1e-3)'")


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
