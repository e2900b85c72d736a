"""`backend=tinker`: RunSpec to the stages of a training on a service, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from xp.contrib.tinker.columns import COLUMNS, SFT_COLUMNS
from xp.contrib.tinker.prices import plan_lines as plan_lines
from xp.contrib.tinker.worker.service import KEY, QUIET, URL, TinkerSftConfig, TinkerTrainConfig
from xp.contrib.tinker.worker.state import FORM
from xp.contrib.tinker.worker.used import COST
from xp.errors import nearest
from xp.fields import support
from xp.fields.field import Native, Refusal
from xp.fields.support import FieldSupport, value_refusals, with_sft
from xp.planning.backend import MemoryUse
from xp.planning.job import Job, Stage
from xp.planning.runtime import trainer_runtime
from xp.planning.sft import sft_fields, sft_needs
from xp.planning.stages import (
    cpu_environment,
    model_stages,
    train_and_evaluate,
    train_fields,
    trainer_job,
)
from xp.spec import RunSpec
from xp.worker.places import RunPaths
from xp.worker.step_log import MEASURED
from xp.worker.tiny_model import PLACE

METRIC_SOURCES: Final[Mapping[str, str]] = {
    **{name: f"xp, {remark}" if remark else "xp" for name, remark in MEASURED.items()},
    "training/loss": "xp, of the service's log-probabilities and the spec's formula",
    "training/grad_norm": "`grad_norm` of optim_step, where the service returns it",
    "training/learning_rate": "xp",
    "training/clip_fraction": "xp",
    "training/kl": "xp, only with `algorithm.use_kl_in_reward`",
    "training/logprob_gap": "xp",
    "training/staleness": "xp, only with `training.max_staleness`",
    **dict.fromkeys(["cost/prompt_tokens", "cost/sampled_tokens", "cost/trained_tokens"], "xp"),
    COST: "xp, only with `hardware.usd_per_million_tokens`",
    "time/step_s": "xp, from the end of the step before, or of the evaluation after that",
    "time/logprobs_s": "xp",
    "time/update_s": "xp",
    "time/weight_sync_s": "xp",
}
"""Metric -> its source."""
PACKAGES: Final = ("tinker", "torch", "transformers", "peft", "openreward")
OPTIONS: Final[Mapping[str, type]] = {"base_model": str, "deadline_s": float, "loss_fn": str}
"""Keys of `backend.overrides`: the service's name of the model, the longest wait for an answer in seconds, and a loss in
the place of the rendered one."""
OTHER_LOSSES: Final = ("importance_sampling",)
SECRETS: Final = {URL: URL, KEY: KEY}


def check(spec: RunSpec) -> Sequence[Refusal]:
    """See xp.planning.backend.Backend."""
    return [
        *support.refusals(with_sft(COLUMNS, SFT_COLUMNS, spec), spec),
        *_option_refusals(spec),
    ]


def _option_refusals(spec: RunSpec) -> Iterator[Refusal]:
    rendered = support.owners(COLUMNS, spec)
    for key, value in spec.backend.overrides.items():
        place = f"backend.overrides.{key}"
        if key not in OPTIONS:
            field = rendered.get(key)
            known = f"set {field}" if field else f"there are {', '.join(OPTIONS)}"
            yield Refusal(place, f"no such key{nearest(key, OPTIONS)}; {known}")
        elif not isinstance(value, (int, float) if OPTIONS[key] is float else str):
            yield Refusal(place, f"must be a {OPTIONS[key].__name__}; got {value!r}; set one")
        elif key == "loss_fn" and value not in OTHER_LOSSES:
            yield Refusal(place, f"must be {' or '.join(OTHER_LOSSES)}; set algorithm for others")


def meanings(spec: RunSpec) -> Mapping[str, FieldSupport]:
    """See xp.planning.backend.Backend."""
    refused = [*value_refusals(spec), *check(spec)]
    replaced = {
        key: (value, "the ratio is not clipped" if key == "loss_fn" else "the service's own name")
        for key, value in spec.backend.overrides.items()
    }
    return support.meanings(with_sft(COLUMNS, SFT_COLUMNS, spec), spec, refused, _written, replaced)


def _written(keys: Native) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def memory(spec: RunSpec) -> MemoryUse:
    """See xp.planning.backend.Backend; no accelerator is used here."""
    del spec
    return MemoryUse()


def unauthenticated_endpoints(spec: RunSpec) -> tuple[str, ...]:
    """See xp.planning.backend.Backend; there are none."""
    del spec
    return ()


def checkpoint(spec: RunSpec, places: RunPaths, step: int) -> str:
    """Hugging Face directory of a rollout step's checkpoint, with adapters alone."""
    del spec
    return f"{places.checkpoints}/{FORM.format(step)}"


def render(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """The stages model (for the model that xp ships), sft, train with all evaluations, and evaluate in case of a
    crash: the training's own program, since the policy is on the service."""
    made = model_stages(spec, places) if spec.model.path == PLACE else ()
    train = _train_job(spec, places)
    stages = train_and_evaluate(spec, places, made, _sft_stage, train)
    return tuple(
        replace(stage, job=_played_by(stage.job, train)) if stage.name == "evaluate" else stage
        for stage in stages
    )


def _played_by(job: Job, train: Job) -> Job:
    return replace(job, argv=train.argv, secrets=train.secrets)


def requests(spec: RunSpec) -> dict[str, Any]:
    """Arguments of the requests, with the user's own."""
    return support.render(COLUMNS, spec) | spec.backend.overrides


def _train_job(spec: RunSpec, places: RunPaths) -> Job:
    config = TinkerTrainConfig(**train_fields(spec, places), requests=requests(spec))
    outputs = (f"{places.model}/digests.json", places.metrics)
    return _job(spec, places.stage("train"), "train", config.to_json(), outputs)


def _sft_stage(spec: RunSpec, places: RunPaths) -> Stage:
    config = TinkerSftConfig(**sft_fields(spec, places), requests=requests(spec))
    here = places.stage("sft")
    job = _job(spec, here, "sft", config.to_json(), (f"{places.sft}/digests.json",))
    needs = sft_needs(spec, places) if spec.model.path == PLACE else ("prepare",)
    return Stage("sft", job, needs=needs)


def _job(spec: RunSpec, here: str, program: str, config: str, outputs: tuple[str, ...]) -> Job:
    job = trainer_job(
        spec,
        here,
        ("python", "-m", f"xp.contrib.tinker.worker.{program}", f"{here}/config.json"),
        {"config.json": config},
        outputs,
        trainer_runtime(spec, PACKAGES),
        {**cpu_environment(spec.backend.num_threads), **QUIET},
    )
    return replace(job, secrets={**job.secrets, **SECRETS})


def examination(spec: RunSpec) -> tuple[Sequence[str], Mapping[str, str]]:
    """See xp.planning.backend.Backend: asks the service."""
    words = ("-m", "xp.contrib.tinker.worker.examine", str(requests(spec)["base_model"]))
    return words, SECRETS
