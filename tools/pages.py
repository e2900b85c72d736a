"""`make docs`: the pages of docs/ that are made from the code: every key, the parity table, the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from tools.checkpoints import page as models_page
from tools.parity.measure import section
from tools.public_memory import page as memory_page
from tools.public_scripts import page as scripts_page
from xp.cli.explain import (
    ExplainedField,
    comment_of,
    fields_of,
    source_of,
    specs_of,
    trainers,
)
from xp.composition import compose, origin_of
from xp.episode.metric_table import METRICS, Metric
from xp.fields.message_limits import with_proof
from xp.fields.support import FieldSupport, Support, meant_fields, value_warnings
from xp.lib.text import as_yaml
from xp.planning.backend import backend_of
from xp.spec import BackendName

REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4")
"""Spec behind docs/parity.md: the public SkyRL example's model and machine."""
SIGNS = {Support.EXACT: "", Support.EMULATED: "≈ ", Support.UNSUPPORTED: "✗ "}
ALGORITHMS = (
    ("algorithm=gspo",),
    ("algorithm=cispo",),
    ("algorithm=reinforce_pp",),
    ("algorithm=reinforce_pp_baseline",),
    ("algorithm=maxrl",),
    ("algorithm=sapo",),
    ("algorithm=ppo", "training.critic_learning_rate=1e-05"),
    ("algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:my_advantages"),
    ("algorithm=opd", "algorithm.distill.teacher=ORG/TEACHER", "training.kl_coef=0"),
    ("env.train.curriculum=pass_rate",),
)
"""Overrides of the reference spec under which fields have an effect that are null or unused in it."""
BY_XP: Final = "by xp, in "
DOCS = Path(__file__).resolve().parents[1] / "docs"
MEASURED = DOCS.parent / "tools/parity/measured.json"
"""Output of `make parity-measure`."""
HEADER = (
    "| field | value | " + " | ".join(trainers()) + " |",
    "|---|---|" + "---|" * len(trainers()),
)
METRICS_HEAD: Final = """\
# Metrics

Made by `make docs` from the table that the code uses (`xp/episode/metrics.toml`).
`python -m xp explain METRIC` answers for one metric on the command line, `python -m xp explain metrics` lists all.

A run writes them to `metrics.jsonl` ([format](records.md)), one line per rollout step, and mirrors them to the
trackers ([tracking](tracking.md)). A metric of an evaluation has `evaluation/before/`, `evaluation/during/` or
`evaluation/after/` before its name. In a mixture each metric of the episodes exists for each environment too, as
`<environment>/<name>`.

The last columns name the source of the metric on each backend: the trainer's own name for it, or a measurement of xp's.
An empty cell: the backend does not have the metric."""

COMPOSITIONS: Final = (
    REFERENCE,
    (*REFERENCE, "algorithm=ppo"),
    (*REFERENCE, "algorithm=sapo", "algorithm.overlong={buffer_tokens: 512, factor: 1.0}"),
    (*REFERENCE, "algorithm=opd", "algorithm.distill.teacher=ORG/TEACHER", "training.kl_coef=0"),
    (*REFERENCE, "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"),
    ("hardware=cpu",),
)
"""Overrides of specs that together have every section; a critic, a teacher, adapters and a built model are null in
others."""
HEAD: Final = """\
# Every key

Made by `make docs` from the schema (`xp/spec/`), the defaults (`conf/`) and the backends' rows.
`python -m xp explain KEY` answers for one key of your own command line: its value, the file and line that say it, and
what each trainer receives.

*Default* is the value of the group's `_base.yaml`, or of the only file that has the key; options say what differs.
*Trainers*: what each of them receives for the value of `{reference}`. No sign: exact.
≈ emulated: the same meaning by other means, or with a difference that [the parity table](parity.md) notes.
✗ unsupported: refused where it is set.
A key without this line is implemented by xp itself and means the same everywhere."""


@dataclass(frozen=True)
class ParityRow:
    """Row of one field."""

    field: str
    value: str
    meanings: Mapping[str, FieldSupport]


def rows(overrides: Sequence[str]) -> list[ParityRow]:
    """What each backend receives of every field, in the order of the schema."""
    specs = specs_of(overrides)
    meanings = {name: backend_of(spec).meanings(spec) for name, spec in specs.items()}
    found: dict[str, dict[str, str]] = {}
    for name, spec in specs.items():
        for field in meant_fields(spec):
            value = attrgetter(field)(spec)
            found.setdefault(field, {})[name] = "null" if value is None else str(value)
    table = []
    for field, values in found.items():
        first, *others = values.items()
        differing = ", ".join(f"{name}: {value}" for name, value in others if value != first[1])
        of_field = {name: of_one[field] for name, of_one in meanings.items() if field in of_one}
        table.append(
            ParityRow(field, f"{first[1]} ({differing})" if differing else first[1], of_field)
        )
    return table


def reference_page() -> str:
    """Content of docs/reference.md."""
    lines = [HEAD.format(reference=" ".join(REFERENCE))]
    section = ""
    keys = _keys()
    for path in sorted(keys, key=lambda path: (_order(path), list(keys).index(path))):
        if _section(path) != section:
            section = _section(path)
            lines += ["", f"## {section}"]
        lines += ["", *_entry(*keys[path])]
    return "\n".join(lines) + "\n"


def _keys() -> Mapping[str, tuple[ExplainedField, tuple[str, ...], ParityRow | None]]:
    """Key -> its field, the composition that has it, and its row of the parity table."""
    found: dict[str, tuple[ExplainedField, tuple[str, ...], ParityRow | None]] = {}
    for overrides in COMPOSITIONS:
        table = {row.field: row for row in rows(overrides)}
        for path, field in fields_of(compose(overrides)).items():
            # A section that is null in one composition has keys in another.
            found = {
                known: entry for known, entry in found.items() if not path.startswith(f"{known}.")
            }
            if path not in found and not any(known.startswith(f"{path}.") for known in found):
                found[path] = (field, overrides, table.get(path))
    return found


def _section(path: str) -> str:
    if "." in path:
        return path.partition(".")[0]
    return "The run"


def _order(path: str) -> int:
    sections = (
        "The run",
        "env",
        "model",
        "algorithm",
        "training",
        "evaluation",
        "preparation",
        "backend",
        "hardware",
    )
    section = _section(path)
    if section in sections:
        return sections.index(section)
    return len(sections)


def _entry(
    field: ExplainedField, overrides: tuple[str, ...], row: ParityRow | None
) -> Iterator[str]:
    origin = origin_of(field.path, overrides)
    raw = origin.marks[0].raw if origin.marks else ""
    yield f"### {field.path}"
    yield ""
    yield field.meaning or comment_of(origin)
    yield ""
    yield f"* Type: {field.legal}. Default: `{raw or as_yaml(field.value)}`"
    if row is not None:
        cells = (
            f"{name} {SIGNS[one.support]}{'' if one.support is Support.UNSUPPORTED else f'`{one.receives}`'}".strip()
            for name, one in row.meanings.items()
        )
        yield f"* Trainers: {' · '.join(cells)}"


def parity_markdown(
    table: Sequence[ParityRow],
    by_algorithm: Mapping[str, Sequence[ParityRow]],
    measured: Sequence[str] = (),
) -> str:
    """Makes the text of docs/parity.md.

    Args:
        table: rows of the reference spec.
        by_algorithm: overrides -> all rows with them, of which the algorithm's fields are shown.
        measured: lines about measurements, after the table.
    """
    counts = {
        fit: sum(m.support is fit for row in table for m in row.meanings.values())
        for fit in Support
    }
    notes: dict[str, int] = {}
    known = {row.field: row for row in table}
    body = [_parity_row(row, notes) for row in table if not _is_xps(row)]
    for overrides, rows_of_one in by_algorithm.items():
        changed = [
            row
            for row in rows_of_one
            if _is_of_the_algorithm(row.field) and row != known.get(row.field)
        ]
        body += ["", f"### {overrides}", ""]
        if changed:
            body += [*HEADER, *(_parity_row(row, notes) for row in changed)]
        # What a key that xp implements changes on every trainer.
        body += [f"\n{text}" for text in value_warnings(compose([*REFERENCE, *overrides.split()]))]
    return "\n".join(
        [
            "# What each trainer receives",
            "",
            "Made by `make docs` from the backends' own `meanings`, for `"
            + " ".join(REFERENCE)
            + "`;",
            "`python -m xp explain KEY [overrides]` answers for one field of any other spec.",
            "The fields of the other algorithms, where they differ, are at the end.",
            "",
            f"No sign: exact ({counts[Support.EXACT]} cells)."
            f" ≈ emulated ({counts[Support.EMULATED]}): the same meaning by",
            "other means, or with the difference that the note names.",
            f"✗ unsupported ({counts[Support.UNSUPPORTED]}): a plan that sets it is refused.",
            "",
            "xp itself implements `env`, `hardware`, `launcher` and others, the same everywhere, and these fields:",
            "",
            ", ".join(
                f"`{row.field}` ({row.meanings[BackendName.TRL].receives.removeprefix(BY_XP)})"
                for row in table
                if _is_xps(row)
            )
            + ".",
            "",
            *HEADER,
            *body,
            "",
            *(f"{number}. {note}" for note, number in notes.items()),
            "",
            *measured,
        ]
    )


def parity_page() -> str:
    """Content of docs/parity.md."""
    others = {" ".join(one): rows([*REFERENCE, *one]) for one in ALGORITHMS}
    return parity_markdown(rows(REFERENCE), others, section(MEASURED))


def _is_xps(row: ParityRow) -> bool:
    """Returns whether xp itself implements the field on every backend."""
    return all(meaning.receives.startswith(BY_XP) for meaning in row.meanings.values())


def _is_of_the_algorithm(field: str) -> bool:
    return (
        field.startswith("algorithm.") and field != "algorithm.name"
    ) or field == "training.critic_learning_rate"


def _parity_row(row: ParityRow, notes: dict[str, int]) -> str:
    cells = []
    for name in trainers():
        meaning = row.meanings.get(name)
        if meaning is None:
            cells.append("")
            continue
        note = with_proof(name, row.field, meaning.note)
        if note:
            mark = f" ({notes.setdefault(note, len(notes) + 1)})"
        else:
            mark = ""
        if meaning.support is Support.UNSUPPORTED:
            receives = ""
        else:
            receives = f"`{meaning.receives}`"
        cells.append(f"{SIGNS[meaning.support]}{receives}{mark}".replace("|", "\\|").strip())
    return f"| `{row.field}` | `{row.value}` | " + " | ".join(cells) + " |"


def metrics_page() -> str:
    """Content of docs/metrics.md."""
    episodes = [row for row in METRICS if row.is_of_episodes]
    others = [row for row in METRICS if not row.is_of_episodes]
    lines = [
        METRICS_HEAD,
        "",
        "## Metrics of the episodes",
        "",
        "Computed by xp from the episodes' outcomes, the same on every backend.",
        "",
    ]
    lines += ["| metric | unit | meaning | how to read it |", "|---|---|---|---|"]
    lines += [_metric_row(row.name, row) for row in episodes]
    lines += [
        "",
        "## Metrics of the training",
        "",
        "| metric | unit | meaning | how to read it | " + " | ".join(trainers()) + " |",
    ]
    lines += ["|---|---|---|---|" + "---|" * len(trainers())]
    lines += [
        _metric_row(row.name, row, *(source_of(row, backend) for backend in trainers()))
        for row in others
    ]
    return "\n".join(lines) + "\n"


def _metric_row(name: str, row: Metric, *sources: str) -> str:
    return (
        "| "
        + " | ".join((f"`{name}`: {row.title}", row.unit, row.meaning, row.reading, *sources))
        + " |"
    )


def main() -> None:
    """Rewrites the pages."""
    pages = {
        "parity": parity_page,
        "metrics": metrics_page,
        "reference": reference_page,
        "public-scripts": scripts_page,
        "memory": memory_page,
        "models": models_page,
    }
    for name, page in pages.items():
        (DOCS / f"{name}.md").write_text(page())


if __name__ == "__main__":
    main()
