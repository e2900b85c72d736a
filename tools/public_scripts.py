"""Public training scripts as recipes: where each of their keys went, for docs/public-scripts.md and its test."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import yaml

from xp.composition import compose
from xp.planning.native_keys import AnswerKind
from xp.spec import RunSpec
from xp.worker.places import RunPaths

FILE: Final = Path(__file__).parents[1] / "tests/recorded/published_recipes.yaml"
"""Recipe -> the keys of its source; `field` names xp's where the source is of another trainer, `here` its value."""
PLACES: Final = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
HEAD: Final = """\
# Public scripts

Made by `make docs`: public training scripts as recipes, key by key. `tests/unit/test_published_recipes.py` plans the
recipes and holds each value against what the trainer receives. A key went to a field, to a constant with its reason, or
is answered by a sentence.

Values of `backend.overrides` replace a constant or a field of xp's where its row allows it; the plan then says what no
longer holds.

Without a field, on purpose:
"""
WITHOUT_A_FIELD: Final = {
    "`token_mean_legacy`, `bnpo`": "a mean of micro-batches' means depends on `training.micro_batch_size`;"
    " `backend.overrides` opens it on SkyRL and TRL",
    "`clip_cov`, `kl_cov`": "they choose tokens by their covariance within a micro-batch, and SkyRL alone has them;"
    " `backend.overrides` opens them there",
    "`dppo`": "SkyRL alone has it; `backend.overrides` opens it there",
    "`gmpo`": "none of the three trainers has the loss",
    "top-entropy tokens": "TRL alone has them: `backend.overrides.top_entropy_quantile`",
}
"""Knob -> why it is no field."""


def sources() -> Mapping[str, list[dict[str, Any]]]:
    """Recipe -> rows."""
    content: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


def received(spec: RunSpec) -> dict[str, Any]:
    """Native keys of a recipe's trainer."""
    if spec.backend.name == "skyrl":
        from xp.backends.skyrl.control.render import native

        return native(spec) | {"trainer.policy.model.path": spec.model.path}
    if spec.backend.name == "slime":
        from xp.backends.slime.control.render import train_flags

        return {flag: _plain(words) for flag, words in train_flags(spec, PLACES).items() if words is not None}
    from xp.backends.trl.control.render import grpo_config

    found = dict(grpo_config(spec, PLACES)) | {"model_name_or_path": spec.model.path}
    if (lora := spec.model.lora) is not None:
        found |= {"lora_r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
        found["lora_target_modules"] = [*(lora.target_modules or ())]
    return found


def _plain(words: tuple[str, ...]) -> Any:
    """A flag's value as YAML has it; true: a switch."""
    if not words:
        return True
    try:
        return int(words[0])
    except ValueError:
        pass
    try:
        return float(words[0])
    except ValueError:
        return " ".join(words)


def value_here(spec: RunSpec, row: Mapping[str, Any], native: Mapping[str, Any]) -> Any:
    """What a recipe has for a row without `differs`."""
    return attrgetter(row["field"])(spec) if "field" in row else native.get(row["key"])


def expected(row: Mapping[str, Any]) -> Any:
    return row.get("here", row["value"])


def home(spec: RunSpec, row: Mapping[str, Any]) -> str:
    """Where a key went: a field, a constant with its reason, or a sentence."""
    if "differs" in row:
        return str(row["differs"])
    if "field" in row:
        return f"`{row['field']}={_text(expected(row))}`"
    key = row["key"]
    keys = import_module(f"xp.backends.{spec.backend.name}.control.render").native_keys(spec)
    if (found := keys.replaced(spec.backend.overrides).get(key)) is not None:
        return f"`backend.overrides.{key}`: {found[1]}"
    field = keys.owners.get(key)
    if not field and (found := keys.answer(key)) is not None and found[0] is AnswerKind.OWNER:
        field = found[1]
    if field:
        return f"`{field}`"
    reason = keys.pins[key].reason if key in keys.pins else ""
    return f"constant: {reason}" if reason else "the machine and the model"


def _text(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


def page() -> str:
    """Content of docs/public-scripts.md."""
    lines = [HEAD, "| knob | reason |", "|---|---|"]
    lines += [*(f"| {knob} | {reason} |" for knob, reason in WITHOUT_A_FIELD.items()), ""]
    for recipe, rows in sources().items():
        spec = compose([f"recipes={recipe}"])
        links = dict.fromkeys(row["source"].partition("#")[0] for row in rows)
        lines += [f"## {recipe}", "", f"`python -m xp plan recipes={recipe}`. Sources:", ""]
        lines += [f"* [{link.rpartition('/')[2]}]({link})" for link in links]
        lines += ["", "| key | value | in xp |", "|---|---|---|"]
        for row in rows:
            lines.append(f"| `{row['key']}` | `{_text(row['value'])}` | {home(spec, row)} |".replace("\n", " "))
        lines.append("")
    return "\n".join(lines)
