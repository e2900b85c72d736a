"""Messages about batch shapes: violations, near legal shapes, and the arithmetic of a legal shape."""

from __future__ import annotations

from xp.lib.text import counted
from xp.planning.backend import Refusal, backend_of
from xp.planning.batch.constraint import Constraint, broken
from xp.planning.batch.search import nearest_legal
from xp.planning.batch.shape import BatchShape, batch_shape
from xp.spec import RunSpec


def spec_constraints(spec: RunSpec) -> tuple[Constraint, ...]:
    """The constraints of the spec's backend."""
    return backend_of(spec).batch_constraints(spec)


def batch_refusals(spec: RunSpec) -> list[Refusal]:
    """Every violated constraint, with its formula, the numbers, the source, and the nearest legal batch shapes."""
    constraints, batch = spec_constraints(spec), batch_shape(spec)
    found = broken(batch, constraints)
    if not found:
        return []
    near = nearest_legal(batch, constraints)
    way_out = f"nearest legal: {', or '.join(map(str, near))}" if near else "no similar batch shape is legal"
    by_field = {constraint.field: constraint for constraint in reversed(found)}
    return [Refusal(constraint.field, f"{_what(constraint, batch)}; {way_out}") for constraint in by_field.values()]


def arithmetic(spec: RunSpec) -> list[str]:
    """Lines about the distribution of a step's episodes over ranks, for a legal spec."""
    batch = batch_shape(spec)
    per_update = batch.episodes // batch.updates
    share = per_update // batch.ranks
    if batch.is_packed:
        split = f"packed up to {counted(spec.training.max_tokens_per_micro_batch or 0, 'token')} a micro-batch"
    else:
        split = f"{counted(share // batch.micro, 'micro-batch', 'micro-batches')} of {batch.micro}"
    ranks = counted(batch.ranks, "data-parallel rank")
    share_of_all = f"{batch.episodes} / {batch.updates} = {counted(per_update, 'episode')}"
    lines = [f"an update: {share_of_all} over {ranks}, {split} each"]
    if batch.accelerators > 1 or spec.hardware.accelerators_per_node:
        shape = " x ".join(
            f"{name} {getattr(batch, name)}" for name in ("tensor", "pipeline", "context") if getattr(batch, name) > 1
        )
        engines = f"{counted(batch.engines, 'engine')} of {batch.engine_tensor}"
        where = "the same" if batch.engine_accelerators is None else "their own"
        lines.append(
            f"accelerators: {batch.training} train ({ranks}{' x ' + shape if shape else ''});"
            f" {engines} on {where} {batch.generating}"
        )
    return lines


def _what(constraint: Constraint, batch: BatchShape) -> str:
    silent = f"; the trainer does not check this: {constraint.silent}" if constraint.silent else ""
    return f"{constraint.formula}; got {constraint.numbers(batch)} ({constraint.source}){silent}"
