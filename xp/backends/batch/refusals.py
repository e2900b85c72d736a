"""Messages about batch shapes: why one is illegal, which legal ones are near, and the arithmetic of a legal one."""

from __future__ import annotations

from xp.backends.base import Refusal, render_module
from xp.backends.batch.laws import Law, broken
from xp.backends.batch.search import nearest_legal
from xp.backends.batch.setting import Setting, setting_of
from xp.spec import RunSpec


def spec_laws(spec: RunSpec) -> tuple[Law, ...]:
    """The constraints of the spec's backend."""
    return render_module(spec).batch_laws(spec)


def batch_refusals(spec: RunSpec) -> list[Refusal]:
    """Every violated constraint, with its formula, the numbers, the source, and the nearest legal batch shapes."""
    laws, setting = spec_laws(spec), setting_of(spec)
    found = broken(setting, laws)
    if not found:
        return []
    near = nearest_legal(setting, laws)
    way_out = f"nearest legal: {', or '.join(map(str, near))}" if near else "no similar batch shape is legal"
    by_field = {law.field: law for law in reversed(found)}
    return [Refusal(law.field, f"{_what(law, setting)}; {way_out}") for law in by_field.values()]


def arithmetic(spec: RunSpec) -> list[str]:
    """Distribution of a step's episodes over ranks, in words, for a legal spec."""
    setting = setting_of(spec)
    per_update = setting.episodes // setting.updates
    share = per_update // setting.ranks
    if setting.is_packed:
        split = f"packed up to {spec.training.max_tokens_per_micro_batch} tokens a micro-batch"
    else:
        split = f"{share // setting.micro} micro-batch{'es' if share > setting.micro else ''} of {setting.micro}"
    ranks = f"{setting.ranks} data-parallel rank{'s' if setting.ranks > 1 else ''}"
    lines = [f"an update: {setting.episodes} / {setting.updates} = {per_update} episodes over {ranks}, {split} each"]
    if setting.accelerators > 1 or spec.hardware.accelerators_per_node:
        shape = " x ".join(
            f"{name} {getattr(setting, name)}"
            for name in ("tensor", "pipeline", "context")
            if getattr(setting, name) > 1
        )
        engines = f"{setting.engines} engine{'s' if setting.engines > 1 else ''} of {setting.engine_tensor}"
        where = "the same" if setting.engine_accelerators is None else "their own"
        lines.append(
            f"accelerators: {setting.training} train ({ranks}{' x ' + shape if shape else ''});"
            f" {engines} on {where} {setting.generating}"
        )
    return lines


def _what(law: Law, setting: Setting) -> str:
    silent = f"; the trainer does not check this: {law.silent}" if law.silent else ""
    return f"{law.formula}; got {law.numbers(setting)} ({law.source}){silent}"
