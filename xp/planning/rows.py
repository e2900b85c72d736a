"""Rows that describe the support of a field of the spec on a backend, and rows that all backends share.

A backend's rows give the native keys of a job, the refusals, the parity table and the names in hints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from xp.planning.backend import FieldSupport, Refusal, Support, meant_fields
from xp.spec import EngineName, ImportanceCorrection, PolicyLoss, RatioFrom, RunSpec
from xp.worker.adapters import NOT_TIED, TIED
from xp.worker.importance import Importance

Native = Mapping[str, Any]
"""Native key -> value."""
Text = str | Callable[[RunSpec], str]
"""A constant, or a function of the spec."""

REFUSED = "refused if it is set"
LEFT_OUT = "nothing: the flag is left out"


@dataclass(frozen=True)
class Row:
    """Support of one field on one backend."""

    field: str
    """Key path; fields below it without their own row share this one. Empty: the row is the same for every spec."""
    render: str | Native | Callable[[RunSpec], Native] | None = None
    """Native keys and their values; a single name: the key that gets the field's value unchanged."""
    implemented_by: Text = ""
    """The part of xp or of the trainer that implements the field, alone or in addition to the native keys."""
    receives: Text = ""
    """Description instead of the native keys and `implemented_by`; empty: none."""
    note: Text = ""
    """One sentence about the difference; with a note, the support is emulated."""
    support: Support | Callable[[RunSpec], Support | None] | None = None
    """Degree of support, if `note` and `refuse` do not determine it."""
    refuse: str | Callable[[RunSpec], str | None] | None = None
    """Returns why this value cannot run and how to fix it; None if it can run. A text: why no value but null, false or
    nothing can."""
    native: tuple[str, ...] = ()
    """Native keys of the field that are written elsewhere, or not at all."""
    opens: Native = dataclasses.field(default_factory=dict)
    """Native keys that `backend.overrides` may set in place of xp, each with the sentence of what no longer holds."""
    reasons: Native = dataclasses.field(default_factory=dict)
    """Native keys with one value for every run, each with the reason."""

    def keys(self, spec: RunSpec) -> Native:
        """The native keys of a spec."""
        if isinstance(self.render, str):
            return {self.render: attrgetter(self.field)(spec)}
        return self.render(spec) if callable(self.render) else self.render or {}

    def refusal(self, spec: RunSpec) -> str | None:
        """Returns why the spec's value cannot run; None if it can."""
        if isinstance(self.refuse, str):
            return self.refuse if attrgetter(self.field)(spec) else None
        return None if self.refuse is None else self.refuse(spec)


@dataclass(frozen=True)
class Pin:
    """A native key with one value for every run."""

    value: Any
    reason: str
    """Why; follows a colon."""
    loses: str = ""
    """Sentence of what no longer holds if backend.overrides sets it; empty: it cannot."""


def pinned(pins: Mapping[str, Pin], more: Callable[[RunSpec], Native] = lambda _: {}) -> Row:
    """The row of the native keys that are the same for every run, and of `more` that only some runs have."""
    values = {key: pin.value for key, pin in pins.items()}
    opens = {key: pin.loses for key, pin in pins.items() if pin.loses}
    return Row("", lambda s: {**values, **more(s)}, opens=opens, reasons={key: pin.reason for key, pin in pins.items()})


def when(is_refused: Callable[[RunSpec], bool], reason: Text) -> Callable[[RunSpec], str | None]:
    """A Row's `refuse` with one condition and one reason, which says how to fix it."""
    return lambda spec: _text(reason, spec) if is_refused(spec) else None


def sapo_rows(prefix: str) -> tuple[Row, ...]:
    """Rows of `algorithm.sapo`, with the native names `prefix` and `pos` or `neg`."""

    def of(sign: str) -> Row:
        name, key = f"temperature_{sign}", f"{prefix}{sign[:3]}"
        return Row(
            f"algorithm.sapo.{name}",
            lambda s: {} if s.algorithm.sapo is None else {key: getattr(s.algorithm.sapo, name)},
            native=(key,),
        )

    return Row("algorithm.sapo", receives="nothing: the loss is another"), of("positive"), of("negative")


def adapter_on_tied(spec: RunSpec) -> str | None:
    """Returns why an adapter on the embedding or the head is refused; None: there is none, or they are two matrices."""
    lora, shape = spec.model.lora, spec.model.architecture
    is_named = lora is not None and not {*TIED}.isdisjoint(lora.target_modules or ())
    return NOT_TIED if is_named and shape is not None and shape.tied_embeddings else None


def no_clip(spec: RunSpec) -> str:
    """Note on a bound of the ratio's clipping for a loss that has no clipping; empty for other losses."""
    return "nothing: the gates of sapo are soft" if spec.algorithm.policy_loss is PolicyLoss.SAPO else ""


def render(rows: Sequence[Row], spec: RunSpec) -> dict[str, Any]:
    """All native keys, in the order of the rows."""
    return {key: value for row in rows for key, value in row.keys(spec).items()}


def owners(rows: Sequence[Row], spec: RunSpec) -> dict[str, str]:
    """Native key -> its field; empty if the key is the same for every run."""
    return {key: row.field for row in rows for key in (*row.keys(spec), *row.native)}


def refusals(rows: Sequence[Row], spec: RunSpec) -> list[Refusal]:
    """Refusals of the rows, in the order of the rows."""
    return [Refusal(row.field, reason) for row in rows if (reason := row.refusal(spec)) is not None]


def meanings(
    rows: Sequence[Row],
    spec: RunSpec,
    refused: Sequence[Refusal],
    written: Callable[[Native], str],
    overrides: Native,
) -> dict[str, FieldSupport]:
    """Leaf field of the sections `MEANT` -> its support.

    Args:
        rows: rows of the backend; each field must have one, or be below one.
        spec: the spec.
        refused: all refusals of the spec by the backend.
        written: formats native keys in the trainer's own syntax.
        overrides: native keys of `backend.overrides`, by their names in the rows.
    """
    by_field = {row.field: row for row in rows}
    reasons = {refusal.field: refusal.reason for refusal in reversed(refused)}
    result = {}
    for path in meant_fields(spec):
        of_path = [by_field[above] for above in _upwards(path) if above in by_field]
        reason = next((reasons[row.field] for row in of_path if row.field in reasons), reasons.get(path, ""))
        result[path] = _meaning(of_path[0], spec, reason, written, overrides)
    return result


def _upwards(path: str) -> Iterator[str]:
    """The path itself, then its enclosing sections."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _meaning(row: Row, spec: RunSpec, reason: str, written: Callable[[Native], str], overrides: Native) -> FieldSupport:
    note, support = _text(row.note, spec), row.support(spec) if callable(row.support) else row.support
    if support is Support.UNSUPPORTED:
        return FieldSupport(support, REFUSED, note or reason)
    if reason:
        return FieldSupport(Support.UNSUPPORTED, "refused", reason)
    replaced = {key: overrides[key] for key in row.opens if key in overrides}
    note = " ".join(filter(None, (note, *(f"Overridden: {row.opens[key]}." for key in replaced))))
    parts = (written({**row.keys(spec), **replaced}), _text(row.implemented_by, spec))
    receives = _text(row.receives, spec) or "; ".join(part for part in parts if part) or LEFT_OUT
    return FieldSupport(support or (Support.EMULATED if note else Support.EXACT), receives, note)


def _text(text: Text, spec: RunSpec) -> str:
    return text(spec) if callable(text) else text


COMMON = (
    Row("model.name", implemented_by="the run's record"),
    Row(
        "model.revision",
        implemented_by="the model stage, which fetches the commit; null: the trainer fetches the newest",
    ),
    Row("model.dialect", implemented_by="xp.episode"),
    Row("model.tools_prompt", implemented_by="xp.episode.tokens"),
    Row("algorithm.name", implemented_by="the run's record"),
    Row(
        "algorithm.overlong",
        implemented_by="xp.episode, on the training's episodes, before the baseline and after the group's rewards",
        refuse=when(
            lambda s: (
                s.algorithm.overlong is not None and s.algorithm.overlong.buffer_tokens > s.training.max_response_tokens
            ),
            lambda s: (
                f"buffer_tokens is more than training.max_response_tokens={s.training.max_response_tokens}; lower it"
            ),
        ),
    ),
    Row("training.max_void_fraction", implemented_by="xp.episode.metrics"),
    Row("training.max_hours", implemented_by="xp.worker.time_limit"),
    Row(
        "training.budget_usd",
        implemented_by="xp.worker.time_limit",
        refuse=when(
            lambda s: s.training.budget_usd is not None and s.hardware.usd_per_hour is None,
            "the price of the machines is not known; set hardware.usd_per_hour=N",
        ),
    ),
    Row("training.on_symptom", implemented_by="xp.diagnosis"),
    Row("evaluation.num_tasks", implemented_by="xp.tasks.evaluated"),
    Row(
        "evaluation.max_response_tokens",
        implemented_by="xp.worker.token_budget",
        refuse=lambda s: None if s.evaluation.max_response_tokens is None else _beyond_context(s, longest_in_engine(s)),
    ),
    Row("training.reference", implemented_by="the place of the reference model"),
    Row("evaluation.pass_threshold", implemented_by="xp.episode.metrics"),
)
"""Fields that xp itself implements on every backend."""


SFT = (
    Row("sft.data", implemented_by="xp.planning.sft"),
    *(
        Row(f"sft.{name}", implemented_by="xp.worker.demonstrations, which makes the same tokens and masks everywhere")
        for name in ("min_reward", "per_task", "num_episodes", "thinking")
    ),
    Row(
        "sft.held_out_fraction", implemented_by="xp.worker.sft: the loss before the first update and after the last one"
    ),
)
"""Fields of a fine-tuning that xp itself implements on every backend."""


def sft_updates(key: str) -> tuple[Row, Row]:
    """Rows of a fine-tuning's length for a trainer whose stage computes its updates; `key`: what receives them."""
    epochs = Row("sft.epochs", implemented_by=f"{key}: epochs x (episodes / batch_size, rounded up)")
    return epochs, Row("sft.num_updates", implemented_by=key)


def with_sft(rows: Sequence[Row], sft: Sequence[Row], spec: RunSpec) -> tuple[Row, ...]:
    """Rows of a spec: those of the stage `sft` only if there is one, since they repeat keys of the training's."""
    return (*rows, *(sft if spec.sft.data is not None else ()))


def uneven_sft_batch(ranks: int, spec: RunSpec) -> str | None:
    """Returns why the episodes of a fine-tuning's update cannot be divided among `ranks`; None if they can."""
    sft = spec.sft
    micro = sft.micro_batch_size if sft.max_tokens_per_micro_batch is None else 1
    # With no rank, the layout itself is refused.
    if not ranks or sft.batch_size % (micro * ranks) == 0:
        return None
    return f"must be divisible by sft.micro_batch_size x data-parallel ranks = {micro} x {ranks}; got {sft.batch_size}"


def length_rows(key: str, per_step: Callable[[RunSpec], int] = lambda _: 1) -> tuple[Row, Row]:
    """Rows of `training.num_steps` and `training.epochs`, of which one is null.

    Args:
        key: native key of the number of steps.
        per_step: number of the trainer's steps in one rollout step.
    """

    def steps(spec: RunSpec) -> dict[str, Any]:
        number = spec.training.num_steps
        return {} if number is None else {key: number * per_step(spec)}

    return (
        Row(
            "training.num_steps",
            steps,
            receives=lambda s: "nothing: training.epochs is set" if s.training.num_steps is None else "",
        ),
        # With epochs, the stage's program sets it when the number of tasks is known.
        Row(
            "training.epochs",
            lambda s: {} if s.training.epochs is None else {key: None},
            receives=lambda s: (
                "nothing: training.num_steps is set"
                if s.training.epochs is None
                else f"{key}, from epochs x (tasks in the manifest // prompts_per_step)"
            ),
        ),
    )


def stale_uncorrected(spec: RunSpec) -> str | None:
    """Returns why episodes of an older policy cannot be used; None if they can, or if none are older."""
    if spec.training.max_staleness == 0 or is_corrected(spec) or is_to_engine(spec):
        return None
    return (
        "these episodes are of an older policy, and the update needs a correction for it; set"
        " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or"
        " training.max_staleness=0"
    )


def is_corrected(spec: RunSpec) -> bool:
    """Returns whether there is an importance correction."""
    return spec.algorithm.importance_correction is not ImportanceCorrection.NONE


def is_to_engine(spec: RunSpec) -> bool:
    """Returns whether the clipped ratio is to the engine's log-probabilities."""
    return spec.algorithm.ratio_from is RatioFrom.ENGINE


def importance(spec: RunSpec, *, is_native: bool) -> Importance | None:
    """The importance correction for a trainer; None if there is none.

    Args:
        spec: the spec.
        is_native: whether the trainer itself multiplies the loss by these weights.
    """
    algorithm = spec.algorithm
    if not is_corrected(spec):
        return None
    return Importance(
        algorithm.importance_correction.value, algorithm.importance_lower, algorithm.importance_upper, is_native
    )


def not_ahead(spec: RunSpec, reason: str | None, *, is_colocated: bool) -> str | None:
    """Returns why sampling during updates is impossible; None if it is possible, or not needed.

    Args:
        spec: the spec.
        reason: why the trainer itself cannot do it; None: it can.
        is_colocated: whether engines and trainer share accelerators.
    """
    if spec.training.max_staleness == 0:
        return None
    if is_colocated:
        return (
            "colocated engines and the trainer use the same accelerators by turns, so nothing can be sampled in"
            " advance; set backend.engine.placement=separate (and backend.engine.accelerators), or"
            " training.max_staleness=0"
        )
    return reason or stale_uncorrected(spec)


def no_best(spec: RunSpec) -> str | None:
    """Returns why no best model can be kept; None if it can, or if none is asked for."""
    return _without_evaluation(spec) if spec.evaluation.keep_best else None


def no_reference(spec: RunSpec) -> str | None:
    """Refuses copies into a reference that does not exist."""
    is_off = spec.training.reference_every is None or spec.training.kl_coef > 0
    return None if is_off else "training.kl_coef=0 has no reference to copy into; set null, or training.kl_coef"


def no_patience(spec: RunSpec) -> str | None:
    """Returns why training cannot stop early; None if it can, or if early stopping is not asked for."""
    return None if spec.evaluation.patience is None else _without_evaluation(spec)


def _without_evaluation(spec: RunSpec) -> str | None:
    is_set = spec.evaluation.every is not None
    return None if is_set else "without evaluation.every there is no evaluation while training; set it"


def longest_episode(spec: RunSpec) -> int:
    """Tokens of the longest prompt and all its turns together."""
    return spec.training.max_prompt_tokens + spec.training.max_response_tokens


def longest_in_engine(spec: RunSpec) -> int:
    """The same for the engine, which also plays the evaluations."""
    return max(longest_episode(spec), spec.training.max_prompt_tokens + (spec.evaluation.max_response_tokens or 0))


def too_long(spec: RunSpec) -> str | None:
    """Returns why the longest episode does not fit the model's context; None if it fits."""
    return _beyond_context(spec, longest_episode(spec))


def _beyond_context(spec: RunSpec, longest: int) -> str | None:
    if longest <= spec.model.max_context_tokens:
        return None
    return (
        f"max_prompt_tokens + max_response_tokens = {longest} is more than the"
        f" {spec.model.max_context_tokens} tokens of the context of model={spec.model.name}; lower one of them"
    )


OLDER = "Episodes of an older policy have a larger gap: it is recorded, and only episodes of age 0 can stop the run."
"""Note on `training.max_logprob_gap` where `training.max_staleness` is above 0."""


def cut_gap(spec: RunSpec) -> str | None:
    """Returns why `max_logprob_gap` cannot be checked; None if vLLM's log-probabilities are those of the trainer."""
    training = spec.training
    is_cut = training.top_p < 1 or training.top_k is not None or training.min_p > 0 or training.repetition_penalty != 1
    if not is_cut or spec.backend.engine.name is not EngineName.VLLM or training.max_logprob_gap is None:
        return None
    return (
        "vLLM's log-probabilities are those after top_p, top_k, min_p and repetition_penalty, the trainer's those"
        " before, so the gap does not show whether the weights agree; set null, or all of them off"
    )
