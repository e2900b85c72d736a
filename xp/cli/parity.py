"""One spec on three trainers: what each receives of every field, and how well it supports the field.

`python -m xp.cli.parity` writes docs/parity.md for the reference composition, and what other algorithms change there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

from xp.compose import compose
from xp.compose.faults import nearest_key
from xp.errors import XpError
from xp.planning.backend import Meaning, Support, backend_of, meant_fields
from xp.spec import BackendName, RunSpec

REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4")
"""Spec behind docs/parity.md: the public SkyRL example's model and machine."""
ALGORITHMS = (
    ("algorithm=gspo",),
    ("algorithm=cispo",),
    ("algorithm=reinforce_pp",),
    ("algorithm=ppo", "training.critic_learning_rate=1e-05"),
    ("algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:my_advantages"),
)
"""Overrides of the reference spec under which fields have an effect that are null or unused in it."""
DOCS = Path(__file__).resolve().parents[2] / "docs"
MEASURED = DOCS.parent / "tools/parity/parity-measured.json"
"""Output of `make parity-measure`; only `make docs` reads it."""
SIGNS = {Support.EXACT: "", Support.EMULATED: "≈ ", Support.UNSUPPORTED: "✗ "}


@dataclass(frozen=True)
class ParityRow:
    """Row of one field."""

    field: str
    value: str
    meanings: Mapping[str, Meaning]


def specs_of(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> dict[str, RunSpec]:
    """Composes the same overrides for each of xp's backends, and for a plugin's backend if they select one.

    Raises:
        XpError: the overrides do not compose.
    """
    kept = [text for text in overrides if not text.startswith("backend=")]
    chosen = [text for text in overrides if text.startswith("backend=")]
    specs: dict[str, RunSpec] = {name: compose([*kept, f"backend={name}"], config_dirs) for name in BackendName}
    for spec in (compose([*kept, *chosen], config_dirs) for _ in chosen[:1]):
        specs.setdefault(spec.backend.name, spec)
    return specs


def rows(specs: Mapping[str, RunSpec]) -> list[ParityRow]:
    """Rows of the table, in the order of the schema."""
    meanings = {name: backend_of(spec).meanings(spec) for name, spec in specs.items()}
    fields = dict.fromkeys(field for spec in specs.values() for field in meant_fields(spec))
    return [ParityRow(field, _value(field, specs), _of(field, meanings)) for field in fields]


def below(table: Sequence[ParityRow], prefixes: Sequence[str]) -> list[ParityRow]:
    """Rows whose key begins with one of the prefixes, or all rows; raises XpError for a prefix that no key has."""
    for prefix in prefixes:
        if not any(row.field.startswith(prefix) for row in table):
            raise XpError(f"no key begins with {prefix}{nearest_key(prefix, [row.field for row in table])}")
    return [row for row in table if not prefixes or row.field.startswith(tuple(prefixes))]


def as_json(table: Iterable[ParityRow]) -> str:
    """JSON list of objects: key, value, and for each backend its support, what it receives, and a note."""
    return json.dumps(
        [
            {"key": row.field, "value": row.value}
            | {str(name): asdict(meaning) for name, meaning in row.meanings.items()}
            for row in table
        ],
        indent=2,
        ensure_ascii=False,
    )


def lines(table: Iterable[ParityRow]) -> Iterator[str]:
    """Lines for a terminal: a field, then one line per backend with its support and what it receives."""
    for row in table:
        yield f"{row.field} = {row.value}"
        for name, meaning in row.meanings.items():
            note = f"  ({meaning.note})" if meaning.note else ""
            yield f"  {name:6} {meaning.support:12} {meaning.receives}{note}"


def refused(specs: Mapping[str, RunSpec]) -> dict[str, list[str]]:
    """Backend -> reasons why it refuses the spec; backends that accept it are left out."""
    found = {name: [str(one) for one in backend_of(spec).refusals(spec)] for name, spec in specs.items()}
    return {name: reasons for name, reasons in found.items() if reasons}


def markdown(
    table: Sequence[ParityRow], by_algorithm: Mapping[str, Sequence[ParityRow]], measured: Sequence[str] = ()
) -> str:
    """Makes the text of docs/parity.md.

    Args:
        table: rows of the reference spec.
        by_algorithm: overrides -> all rows with them, of which the algorithm's fields are shown.
        measured: lines about measurements, after the table.
    """
    counts = {fit: sum(m.support is fit for row in table for m in row.meanings.values()) for fit in Support}
    notes: dict[str, int] = {}
    known = {row.field: row for row in table}
    body = [_markdown_row(row, notes) for row in table]
    for overrides, rows_of_one in by_algorithm.items():
        changed = [row for row in rows_of_one if _is_of_the_algorithm(row.field) and row != known.get(row.field)]
        body += ["", f"### {overrides}", "", *HEADER, *(_markdown_row(row, notes) for row in changed)]
    return "\n".join(
        [
            "# What each trainer receives",
            "",
            "Made by `make docs` from the backends' own `meanings`, for `" + " ".join(REFERENCE) + "`;",
            "`python -m xp parity [overrides]` prints it for any other spec, `python -m xp explain KEY` for one field.",
            "The fields of the other algorithms, where they differ, are at the end.",
            "",
            f"No sign: exact ({counts[Support.EXACT]} cells)."
            f" ≈ emulated ({counts[Support.EMULATED]}): the same meaning by",
            "other means, or with the difference that the note names.",
            f"✗ unsupported ({counts[Support.UNSUPPORTED]}): a plan that sets it is refused. Fields that are not here",
            "(`env`, `hardware`, `launcher`, ...) are carried by xp itself and mean the same everywhere.",
            "",
            *HEADER,
            *body,
            "",
            *(f"{number}. {note}" for note, number in notes.items()),
            "",
            *measured,
        ]
    )


HEADER = (
    "| field | value | " + " | ".join(name.value for name in BackendName) + " |",
    "|---|---|" + "---|" * len(BackendName),
)


def reference_markdown() -> str:
    """Content of docs/parity.md."""
    from xp.cli.parity_measure import section

    others = {" ".join(one): rows(specs_of([*REFERENCE, *one])) for one in ALGORITHMS}
    return markdown(rows(specs_of(REFERENCE)), others, section(MEASURED))


def _is_of_the_algorithm(field: str) -> bool:
    return (field.startswith("algorithm.") and field != "algorithm.name") or field == "training.critic_learning_rate"


def _markdown_row(row: ParityRow, notes: dict[str, int]) -> str:
    cells = []
    for name in BackendName:
        meaning = row.meanings.get(name)
        if meaning is None:
            cells.append("")
            continue
        mark = f" ({notes.setdefault(meaning.note, len(notes) + 1)})" if meaning.note else ""
        receives = "" if meaning.support is Support.UNSUPPORTED else f"`{meaning.receives}`"
        cells.append(f"{SIGNS[meaning.support]}{receives}{mark}".replace("|", "\\|").strip())
    return f"| `{row.field}` | `{row.value}` | " + " | ".join(cells) + " |"


def _of(field: str, meanings: Mapping[str, Mapping[str, Meaning]]) -> dict[str, Meaning]:
    return {name: of_one[field] for name, of_one in meanings.items() if field in of_one}


def _value(field: str, specs: Mapping[str, RunSpec]) -> str:
    """The value of a field, or each backend's value if they differ."""
    values = {name: _shown(attrgetter(field)(spec)) for name, spec in specs.items() if field in set(meant_fields(spec))}
    first = next(iter(values.values()))
    others = [f"{name}: {value}" for name, value in values.items() if value != first]
    return f"{first} ({', '.join(others)})" if others else first


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


def main() -> None:
    """Rewrite docs/parity.md."""
    (DOCS / "parity.md").write_text(reference_markdown())


if __name__ == "__main__":
    main()
