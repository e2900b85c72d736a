"""Explains a field of a spec (value, origin, meaning, what each backend receives), a metric, or a plan's native keys."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import docstring_parser

from xp.cli.table import print_json, show_table, wrapped
from xp.composition import ROOT, Origin, compose, origin_of
from xp.composition.faults import every_key, nearest_key, same_key
from xp.composition.native_names import hint as native_hint
from xp.composition.origins import ALTERNATIVES
from xp.composition.plan_keys import PlanKeys
from xp.episode.metric_table import METRICS, Metric, find
from xp.errors import ExitCode, XpError, nearest
from xp.fields.message_limits import with_proof
from xp.fields.support import implemented_by_xp
from xp.lib.load import load_object
from xp.lib.plugins import NATIVE_DIFF, Kind, load, plugins
from xp.lib.text import as_yaml
from xp.planning.backend import backend_of, spec_refusals
from xp.planning.plan import Plan
from xp.spec import BackendName, RunSpec, Section

NATIVE_COLUMNS: Final = dict.fromkeys(("key", "script", "plan", "result", "in_xp"), 0)
BOUNDS: Final = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}
KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "keys of your own",
}
"""Type of a JSON schema, in words."""
ALL: Final = "metrics"
"""Argument of `explain` that lists all metrics."""


def explain_command(args: Namespace) -> int:
    """Explains keys (value, origin, meaning, rendering) and metrics: `explain KEY|METRIC ... [overrides]`."""
    words = [
        word for word in args.overrides if "=" not in word and not word.startswith(("-", "~", "+"))
    ]
    overrides = [word for word in args.overrides if word not in words]
    if not words:
        raise XpError(
            "explain takes a key or a metric: python -m xp explain algorithm.kl_estimator [overrides]"
        )
    metrics = [word for word in words if is_metric(word)]
    # `learning_rate` is a metric, and a key of one section.
    paths = [same_key(word, every_key()) if is_metric(word) else word for word in words]
    keys = [path for path in paths if path is not None]
    entries = [entry for metric in metrics for entry in metric_json(metric)]
    lines = [line for metric in metrics for line in explain_metric(metric)]
    if keys:
        explainer = KeyExplainer(overrides, args.config_dir)
        entries += [entry for key in keys for entry in explainer.facts(key)]
        lines += [line for key in keys for line in explainer.lines(key)]
    if args.json:
        print_json(entries)
    else:
        print("\n".join(map(wrapped, lines)))
    return ExitCode.OK


@dataclass(frozen=True)
class ExplainedField:
    """A key of the spec."""

    path: str
    """Key path as the user types it."""
    value: Any
    meaning: str
    """The field's docstring."""
    legal: str


class KeyExplainer:
    """Explains keys of a composed command line; composes it for each backend.

    Args:
        overrides: overrides of the command line.
        config_dirs: directories with the user's own options.
    """

    def __init__(self, overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> None:
        self._overrides = overrides
        self._config_dirs = config_dirs
        self._spec = compose(overrides, config_dirs)
        self._fields = fields_of(self._spec)
        specs = specs_of(overrides, config_dirs)
        self._meanings = {name: backend_of(spec).meanings(spec) for name, spec in specs.items()}
        self._refusals = {
            name: [str(refusal) for refusal in spec_refusals(spec)] for name, spec in specs.items()
        }

    def lines(self, path: str) -> Iterator[str]:
        """Yields the explanation of a field, or one line for each field of a section; raises XpError for a key that
        does not exist."""
        entries = self.facts(path)
        fact = entries[0]
        if fact["key"] != path:
            yield f"{path}: {_section_meaning(self._spec, path)}"
            for entry in entries:
                yield f"  {entry['key']} = {as_yaml(entry['value'])}  {_first_sentence(entry['means'])}".rstrip()
            return
        yield f"{path} = {as_yaml(fact['value'])}"
        if fact["null_because"]:
            yield f"  null   because {fact['null_because']}, instead of:"
        for number, text in enumerate(fact["from"]):
            yield f"  {'from' if number == 0 and not fact['null_because'] else 'over':6} {text}"
        yield f"  means  {fact['means']}"
        yield f"  legal  {fact['legal']}"
        if not fact["backends"]:
            yield f"  all    exact: {implemented_by_xp(path)}"
        for name, support in fact["backends"].items():
            note = f"  ({support['note']})" if support["note"] else ""
            yield f"  {name:6} {support['support']}: {support['receives']}{note}"
            yield from (f"         refused: {reason}" for reason in support["refused"])

    def facts(self, path: str) -> list[dict[str, Any]]:
        """A key, or every key of a section, as JSON objects; raises XpError for a key that does not exist."""
        below = [
            field for field in self._fields.values() if f"{field.path}.".startswith(f"{path}.")
        ]
        if not below:
            hint = native_hint(path)
            raise XpError(
                f"{path}: no such key{f'; {hint}' if hint else nearest_key(path, self._fields)}"
            )
        return [self._facts_of(field) for field in below]

    def _facts_of(self, field: ExplainedField) -> dict[str, Any]:
        path = field.path
        pairs = ALTERNATIVES if field.value is None else ()
        other = next((key for pair in pairs if path in pair for key in pair if key != path), None)
        backends = {
            name: asdict(meanings[path])
            | {
                "note": with_proof(name, path, meanings[path].note),
                "refused": [
                    with_proof(name, path, text.removeprefix(f"{path}: "))
                    for text in self._refusals[name]
                    if text.startswith(f"{path}: ")
                ],
            }
            for name, meanings in self._meanings.items()
            if path in meanings
        }
        origin = origin_of(path, self._overrides, self._config_dirs)
        return {
            "key": path,
            "value": field.value,
            "null_because": None
            if other is None
            else f"{other} = {as_yaml(self._fields[other].value)}",
            "from": _places(origin),
            "means": field.meaning or comment_of(origin),
            "legal": field.legal,
            "backends": backends,
        }


def specs_of(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> dict[str, RunSpec]:
    """Composes the same overrides for each of xp's backends, and for another package's if they select one.

    Raises:
        XpError: the overrides do not compose.
    """
    others = [text for text in overrides if not text.startswith("backend=")]
    chosen = [text for text in overrides if text.startswith("backend=")]
    specs: dict[str, RunSpec] = {
        name: compose([*others, f"backend={name}"], config_dirs) for name in trainers()
    }
    if chosen:
        spec = compose([*others, *chosen], config_dirs)
        specs.setdefault(spec.backend.name, spec)
    return specs


def trainers() -> list[str]:
    """Names of xp's backends, those of its annex last."""
    annex = [plugin.name for plugin in plugins(Kind.BACKEND) if plugin.top == "xp"]
    return [*(name.value for name in BackendName), *annex]


def fields_of(spec: RunSpec) -> dict[str, ExplainedField]:
    """Every leaf field by its key as the user types it; for a single environment, without the member's name."""
    fields = {field.path: field for field in _walk(spec, "")}
    if len(spec.env.members) == 1:
        prefix = f"env.members.{next(iter(spec.env.members))}."
        short = [
            replace(field, path=field.path.replace(prefix, "env.", 1)) for field in fields.values()
        ]
        return {field.path: field for field in short}
    return fields


def _walk(section: Section, path: str) -> Iterator[ExplainedField]:
    legal = _legal_values(type(section))
    meanings = _meanings(type(section))
    for name in type(section).model_fields:
        value = getattr(section, name)
        below = f"{path}.{name}" if path else name
        if isinstance(value, Section):
            yield from _walk(value, below)
        elif (
            isinstance(value, dict)
            and value
            and all(isinstance(child, Section) for child in value.values())
        ):
            for key, child in value.items():
                yield from _walk(child, f"{below}.{key}")
        else:
            yield ExplainedField(below, value, meanings.get(name, ""), legal[name])


@cache
def _legal_values(section: type[Section]) -> dict[str, str]:
    """Field -> its legal values, in words; cached, since pydantic needs 20 ms for a large section."""
    schema = section.model_json_schema(mode="validation")
    definitions = schema.get("$defs", {})
    return {name: _legal(field, definitions) for name, field in schema["properties"].items()}


@cache
def _meanings(section: type[Section]) -> dict[str, str]:
    """Field -> its docstring, inherited fields too. pydantic would read them at each start of a process."""
    parents = [parent for parent in reversed(section.__mro__) if issubclass(parent, Section)]
    documented = [
        param for parent in parents for param in docstring_parser.parse_from_object(parent).params
    ]
    return {param.arg_name: " ".join((param.description or "").split()) for param in documented}


def _legal(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Legal values of a field, from its JSON schema."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return " or ".join(_legal(option, definitions) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    bounds = [f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if key in schema]
    kind = str(schema.get("type", "anything"))
    text = KINDS.get(kind, kind)
    if "properties" in schema:
        text = f"a section ({', '.join(schema['properties'])})"
    if "pattern" in schema:
        text += f" like {schema['pattern']}"
    if bounds:
        text += f" {' and '.join(bounds)}"
    return text


def _places(origin: Origin) -> list[str]:
    """Origin of the value, then the origins of the values that it replaced."""
    sources = [f"the command line: {origin.override}"] if origin.override else []
    for mark in reversed(origin.marks):
        file = mark.file
        if file.is_relative_to(ROOT):
            file = file.relative_to(ROOT)
        sources.append(f"{file}:{mark.line}{f': {mark.raw}' if mark.raw else ''}")
    return sources or ["xp itself"]


def comment_of(origin: Origin) -> str:
    """The comment above the key in the first file that sets it."""
    if not origin.marks:
        return ""
    lines = origin.marks[0].file.read_text().splitlines()[: origin.marks[0].line - 1]
    above: list[str] = []
    while lines and lines[-1].strip().startswith("#"):
        above.insert(0, lines.pop().strip().lstrip("# "))
    return " ".join(above)


def _section_meaning(spec: RunSpec, path: str) -> str:
    value: Any = spec
    for part in path.split("."):
        if part != "members" and getattr(value, "members", None):
            value = next(iter(value.members.values()))
        if isinstance(value, dict):
            value = value[part]
        else:
            value = getattr(value, part)
    return _first_sentence((type(value).__doc__ or "").strip().replace("\n", " "))


def _first_sentence(text: str) -> str:
    if text:
        return text.split(". ")[0].rstrip(".") + "."
    return ""


def is_metric(word: str) -> bool:
    """Returns whether an argument of `explain` names a metric; keys of the spec have no slash."""
    return "/" in word or word == ALL or bool(_of_last_part(word))


def metric_json(name: str) -> list[dict[str, Any]]:
    """A metric, or all metrics, as JSON objects; raises XpError for an unknown metric."""
    name = next(iter(_of_last_part(name)), name)
    described = find(name)
    if described is None and name != ALL:
        known = [described.name for described in METRICS]
        raise XpError(
            f"{name}: no such metric{nearest(name, known)}; see python -m xp explain {ALL}"
        )
    return [
        {
            "metric": candidate.name,
            "unit": candidate.unit,
            "means": candidate.meaning,
            "read": candidate.reading,
            "sources": {backend: source_of(candidate, backend) or None for backend in trainers()},
        }
        for candidate in ([described] if described is not None else METRICS)
    ]


def explain_metric(name: str) -> Iterator[str]:
    """Yields the explanation's lines; raises XpError for an unknown metric."""
    entries = metric_json(name)
    if name == ALL:
        yield from (f"{entry['metric']}  {_first_sentence(entry['means'])}" for entry in entries)
        return
    (entry,) = entries
    full = next(iter(_of_last_part(name)), name)
    yield full if full == entry["metric"] else f"{full}  ({entry['metric']})"
    yield from (f"  {key:6} {entry[key]}" for key in ("unit", "means", "read"))
    for backend, source in entry["sources"].items():
        yield f"  {backend:6} {source or 'does not give it'}"


def _of_last_part(word: str) -> list[str]:
    """Names of the metrics whose last part is this word: `clip_fraction` is `training/clip_fraction`."""
    return [described.name for described in METRICS if described.name.endswith(f"/{word}")]


def source_of(described: Metric, backend: str) -> str:
    """Source of a metric on a backend; empty if its runs do not have the metric."""
    if described.is_of_episodes:
        return "xp, from the episodes"
    if backend not in list(BackendName):
        sources: Mapping[str, str] = getattr(load(Kind.BACKEND, backend), "METRIC_SOURCES", {})
        return sources.get(described.name, "")
    names = import_module(f"xp.backends.{backend}.worker.metric_names")
    native = [
        f"`{native_name}`"
        for native_name, metric in names.NATIVE.items()
        if metric == described.name
    ]
    if described.name in names.MEASURED:
        remark = names.MEASURED[described.name]
        native.append(f"xp, {remark}" if remark else "xp")
    return ", ".join(native)


def show_native(args: Namespace, plan: Plan) -> None:
    """Prints the native keys of the training, or of the fine-tuning if that is all (`plan --native`); or the table of a
    script's keys (`--native-diff`)."""
    keys = PlanKeys(plan)
    if args.native_diff is not None:
        fields = {path: field.value for path, field in fields_of(plan.spec).items()}
        annex = load_object(NATIVE_DIFF)
        lines, unread = annex.Difference(keys, fields).of_file(args.native_diff)
        show_table(NATIVE_COLUMNS, [asdict(line) for line in lines], as_json=args.json)
        for sentence in unread:
            print(f"not read: {sentence}", file=sys.stderr)
        if not args.json:
            print(annex.counts(lines))
    elif args.json:
        print_json(keys.rendered)
    else:
        print("\n".join(keys.lines()))
