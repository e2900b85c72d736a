"""Writes a page with every key of the configuration, from the schema, conf/ and the backends' rows.

`python -m xp.cli.reference` writes docs/reference.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from xp.cli.explain import Field, comment_of, fields_of, shown
from xp.cli.parity import REFERENCE, SIGNS, ParityRow, rows, specs_of
from xp.compose import compose, origin_of
from xp.planning.backend import Support

COMPOSITIONS: Final = (
    REFERENCE,
    (*REFERENCE, "algorithm=ppo"),
    (*REFERENCE, "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"),
    ("hardware=cpu",),
)
"""Overrides of specs that together have every section; a critic, adapters and a built model are null in others."""
HEAD: Final = """\
# Every key

Made by `make docs` from the schema (`xp/spec/`), the defaults (`conf/`) and the backends' rows.
`python -m xp explain KEY` answers for one key of your own command line: its value, the file and line that say it, and
what each trainer receives.

*Default* is the value of the group's `_base.yaml`, or of the only file that has the key; options say what differs.
*Trainers*: what each of them receives for the value of `{reference}`. No sign: exact.
≈ emulated: the same meaning by other means, or with a difference that [the parity table](parity.md) notes.
✗ unsupported: refused where it is set.
A key without this line is carried by xp itself and means the same everywhere."""


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


def _keys() -> Mapping[str, tuple[Field, tuple[str, ...], ParityRow | None]]:
    """Key -> its field, the composition that has it, and its row of the parity table."""
    found: dict[str, tuple[Field, tuple[str, ...], ParityRow | None]] = {}
    for overrides in COMPOSITIONS:
        table = {row.field: row for row in rows(specs_of(overrides))}
        for path, field in fields_of(compose(overrides)).items():
            # A section that is null in one composition has keys in another.
            found = {known: entry for known, entry in found.items() if not path.startswith(f"{known}.")}
            if path not in found and not any(known.startswith(f"{path}.") for known in found):
                found[path] = (field, overrides, table.get(path))
    return found


def _section(path: str) -> str:
    return path.partition(".")[0] if "." in path else "The run"


def _order(path: str) -> int:
    sections = ("The run", "env", "model", "algorithm", "training", "evaluation", "preparation", "backend", "hardware")
    return sections.index(section) if (section := _section(path)) in sections else len(sections)


def _entry(field: Field, overrides: tuple[str, ...], row: ParityRow | None) -> Iterator[str]:
    origin = origin_of(field.path, overrides)
    raw = origin.marks[0].raw if origin.marks else ""
    yield f"### {field.path}"
    yield ""
    yield field.meaning or comment_of(origin)
    yield ""
    yield f"* Type: {field.legal}. Default: `{raw or shown(field.value)}`"
    if row is not None:
        cells = (
            f"{name} {SIGNS[one.support]}{'' if one.support is Support.UNSUPPORTED else f'`{one.receives}`'}".strip()
            for name, one in row.meanings.items()
        )
        yield f"* Trainers: {' · '.join(cells)}"


def main() -> None:
    """Rewrite docs/reference.md."""
    target = Path(__file__).resolve().parents[2] / "docs/reference.md"
    target.write_text(reference_page())


if __name__ == "__main__":
    main()
