"""Overrides of the command line: reads them, expands the values of a sweep, and puts values into a container."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xp.composition.faults import Fault, all_paths, every_key, explain_unknown_key, same_key
from xp.composition.groups import GROUPS, options
from xp.composition.mixes import MIXED
from xp.composition.native_names import hint
from xp.lib.text import first_line

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

FREE_FORM = re.compile(
    r"(backend\.overrides|sft\.overrides|backend\.pins|env(\.members\.[^.]+)?\.(secrets|options|rows|columns|grader_args)|launcher\.options"
    r"|model\.chat_template)(\.|$)"
)
"""Paths below which any key is legal."""
KEY = re.compile(r"[~+]{0,2}[\w./@:$-]+")
ARGUMENT = re.compile(r"env(\.members\.[^.]+)?\.(grader_args|options)\.(?P<name>\w+)")
TEXTS = ("pattern", "command", "grade", "setup")
"""Arguments and options whose values without quotes are texts, whatever characters they have."""
TRACKING = "tracking"
"""The key of the trackers. They do not change a result: runs that differ only in them are not a sweep."""
LISTS = re.compile(rf"env(\.members\.[^.]+)?\.options\.|{TRACKING}$")
"""Keys for which `a,b` is a list where no sweep is asked for: trackers, and what a provider's package writes so."""


MAX_POINTS = 10_000
"""Largest number of points of a sweep. More is probably a typing mistake."""
TOO_MANY = f"the sweep has more than {MAX_POINTS:,} points; split it"


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[str]]:
    """Returns the overrides that can be read, and the faults of the others."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed: list[Override] = []
    faults = []
    for typed in overrides:
        # `+recipes=x`, as Hydra's users add an option: every group has a place in the defaults here.
        text = typed
        if typed.startswith("+") and typed[1:].partition("=")[0] in GROUPS:
            text = typed[1:]
        try:
            override = _read(parser, text)
        except HydraException as error:
            # A call of one of Hydra's functions (choice, range, ...) has a cause; its grammar's own words say nothing.
            is_call = isinstance(error.__cause__, (TypeError, ValueError))
            key = text.partition("=")[0]
            faults.append(f"{key}: {error.__cause__}" if is_call else _unread(text))
            continue
        fault = _shape_fault(override)
        if fault is None:
            parsed.append(override)
        else:
            faults.append(f"{text}: {fault}")
    return parsed, faults


def _read(parser: OverridesParser, text: str) -> Override:
    """The override of a text; raises HydraException.

    Below env.grader_args and env.options, `TEXTS` without quotes are texts, and so is what Hydra cannot read.
    """
    from hydra.errors import HydraException

    key, _, value = text.partition("=")
    argument = ARGUMENT.fullmatch(key)
    is_text = (
        argument is not None
        and argument["name"] in TEXTS
        and not value.startswith(("'", '"', "null"))
    )
    if not is_text:
        try:
            return parser.parse_override(text)
        except HydraException:
            if argument is None:
                raise
    return replace(parser.parse_override(f"{key}=x"), _value=value, input_line=text)


def _unread(text: str) -> str:
    """Describes the fault of a text that is not an override. A value that may be a secret is not repeated."""
    key, equals, value = text.partition("=")
    known = _elsewhere(text)
    if known:
        return f"{key}: {known}"
    if text.startswith("-"):
        same = same_key(key.lstrip("-").replace("-", "_"), every_key())
        return f"{key}: no such flag; {f'a key is set as {same}=VALUE' if same else 'see python -m xp --help'}"
    if not equals:
        return f"{text}: an override is written key=value or group=option; this word has no `=`"
    if not KEY.fullmatch(key):
        return f"{key!r}: an override is written key=value; a key is made of letters, digits, _ and dots"
    if value.startswith("~"):
        return f"{key}: a shell expands ~ only at the beginning of a word; write {key}=$HOME/... or the whole path"
    return (
        f"{key}: an override is written key=value, and this value cannot be read;"
        f" put text with special characters into quotes: '{key}=\"...\"'"
    )


def _elsewhere(text: str) -> str | None:
    """Hint for another program's key; None for a key that xp has under the same name."""
    known = hint(text)
    if known == f"in xp: {text.partition('=')[0].lstrip('+~')}":
        return None
    return known


def _shape_fault(override: Override) -> str | None:
    """Returns a fault that does not depend on the override's key and value; None if there is none."""
    key = override.key_or_group
    if override.is_delete() or override.is_add():
        known = _elsewhere(override.input_line or key)
        if known:
            return known
    if override.is_delete() or override.is_add() or key.startswith("hydra"):
        return "write it as key=value; keys are neither added (+) nor deleted (~), set one to null"
    if override.package is not None or "/" in key:
        return "a group is chosen as group=option; packages (@) and sub-groups (/) are for files"
    if override.is_sweep_override() or not is_group(override):
        return None
    value = override.value()
    if isinstance(value, list):
        if key == MIXED and all(isinstance(part, str) for part in value):
            return None
        return f"only one option can be chosen; -m {key}=a,b sweeps over several"
    if isinstance(value, (str, int, float)) or (value is None and key == "recipes"):
        return None
    return f"{key}=NAME chooses an option; set a single value as {key}.KEY=VALUE"


def choices_of(parsed: list[Override], *, is_sweep: bool) -> tuple[list[list[Override]], list[str]]:
    """The values that each override takes in turn; one that is at fault takes none and is left out."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    choices: list[list[Override]] = []
    faults: list[str] = []
    for override in parsed:
        if not override.is_sweep_override():
            choices.append([override])
            continue
        line = override.input_line or ""
        key = override.key_or_group
        if key == TRACKING and is_sweep:
            values = line.partition("=")[2]
            faults.append(
                f"{line}: cannot be swept; for all of them in each run, write {key}=[{values}]"
            )
            continue
        if not is_sweep and LISTS.match(key) and override.is_choice_sweep():
            choices.append([parser.parse_override(f"{key}=[{line.partition('=')[2]}]")])
            continue
        if not is_sweep:
            faults.append(f"{line}: several values make a sweep; add -m; a list is written [a,b]")
            continue
        try:
            texts = list(itertools.islice(_texts(override), MAX_POINTS + 1))
        except (HydraException, ValueError) as error:
            reason = first_line(error)
            faults.append(
                f"{line}: a sweep lists its values, as a,b,c or range(1,4) or choice(a,b) ({reason})"
            )
            continue
        twice = sorted(text for text, count in Counter(texts).items() if count > 1)
        if len(texts) > MAX_POINTS:
            faults.append(f"{line}: {TOO_MANY}")
        elif twice or not texts:
            faults.append(
                f"{line}: {f'{twice[0]} is given twice' if twice else _no_value(override)}"
            )
        else:
            choices.append([parser.parse_override(f"{key}={text}") for text in texts])
    if math.prod(map(len, choices)) > MAX_POINTS:
        faults.append(TOO_MANY)
        choices = [choice[:1] for choice in choices]
    return choices, faults


def _no_value(override: Override) -> str:
    """Describes a sweep without a value."""
    from hydra.core.override_parser.types import Glob

    if is_group(override) and isinstance(override.value(), Glob):
        return f"no option matches; options of {override.key_or_group} are {', '.join(options(override.key_or_group))}"
    return "holds no value"


def _texts(override: Override) -> Iterator[str]:
    """The values of a sweep, one after the other; `glob(d*)` takes the options of the group that match."""
    from hydra.core.override_parser.types import Glob

    value = override.value()
    if isinstance(value, Glob) and is_group(override):
        return iter(value.filter(list(options(override.key_or_group))))
    return override.sweep_string_iterator()


def is_group(override: Override) -> bool:
    return override.key_or_group in GROUPS


def apply(container: dict[str, Any], override: Override) -> Iterator[Fault]:
    """Sets one value in place; yields the fault if the key does not exist."""
    path = override.key_or_group
    value = override.value()
    if "${" in str(value):
        yield Fault(
            path,
            f"{path}: {value!r}: interpolation is not supported on the command line; write the value",
        )
        return
    node: Any = container
    parts = path.split(".")
    typed = override.input_line or path
    for depth, part in enumerate(parts[:-1]):
        if isinstance(node, dict) and node.get(part) is None and FREE_FORM.match(path):
            node[part] = {}
        if not isinstance(node, dict) or part not in node:
            yield _unknown(container, path, ".".join(parts[:depth]), node, typed)
            return
        node = node[part]
    last = parts[-1]
    if not isinstance(node, dict) or (last not in node and not FREE_FORM.match(path)):
        yield _unknown(container, path, ".".join(parts[:-1]), node, typed)
    elif (
        isinstance(value, dict)
        and isinstance(node.get(last), dict)
        and (value or not FREE_FORM.match(path))
    ):
        node[last] = {**node[last], **value}
    else:
        node[last] = value


def _unknown(container: dict[str, Any], path: str, parent: str, node: Any, typed: str) -> Fault:
    in_xp = hint(typed)
    if in_xp == f"in xp: {typed}":
        in_xp = None
    return Fault(path, explain_unknown_key(path, parent, node, in_xp, GROUPS, all_paths(container)))
