"""Imports objects by name: `package.module:attribute`, as in specs and entry points."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from numbers import Real
from operator import attrgetter
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.lib.loaded_code import watch


def load_object(name: str) -> Any:
    """The module or the object that `module` or `module:attribute` names; raises ImportError or AttributeError."""
    watch()
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    if attribute:
        return attrgetter(attribute)(loaded)
    return loaded


def load_function(key: str, name: str) -> Callable[..., Any]:
    """Loads a function of the user's, `package.module:function`.

    Args:
        key: last part of the key of the spec, for messages.
        name: the function.

    Raises:
        XpError: (CONFIG) it does not exist, its module fails, or it is not a function.
    """
    try:
        function = load_object(name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"{key} {name} cannot be loaded: {error}") from error
    except Exception as error:
        raise XpError(f"{key} {name} cannot be loaded: {call_fault(error)}") from error
    if not callable(function):
        raise XpError(f"{key} {name} cannot be loaded: it is not a function but {function!r:.100}")
    return function  # type: ignore[no-any-return]


def load_estimate(
    key: str, name: str, noun: str, fault_of: Callable[[Sequence[float]], str] = lambda _: ""
) -> Callable[[Sequence[Any]], list[float]]:
    """Loads a function of the user's that gives one finite number for each entry of a list, and checks that it does.

    Args:
        key: as of `load_function`, like `name` and the XpError.
        noun: the entries, for messages.
        fault_of: what else is wrong with the numbers; empty if nothing is.

    The function that is returned raises XpError(STAGE_FAILED), which stops the run.
    """
    function = load_function(key, name)

    def checked(entries: Sequence[Any]) -> list[float]:
        try:
            numbers = list(function(entries))
        except Exception as error:
            raise XpError(
                f"{key} {name} raised {call_fault(error)}", ExitCode.STAGE_FAILED
            ) from error
        fault = "one finite number for each"
        if len(numbers) == len(entries) and all(map(is_number, numbers)):
            fault = fault_of(numbers)
        if fault:
            raise XpError(
                f"{key} {name} gave {numbers!r:.200} for {len(entries)} {noun}; it must give {fault}",
                ExitCode.STAGE_FAILED,
            )
        return [float(number) for number in numbers]

    return checked


def call_fault(error: Exception) -> str:
    """Type, text and position of an exception of the user's code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def is_number(value: Any) -> bool:
    """Returns whether a result of the user's code is a finite number, numpy's too."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def import_large(*modules: str) -> None:
    """Imports modules without garbage collections, which take a fifth of the time of a large import.

    Collections thereafter, and those at the end of the process, leave out all objects of before.
    """
    gc.disable()
    try:
        for name in modules:
            import_module(name)
    finally:
        gc.freeze()
        gc.enable()
