"""Changes of single fields of a spec: each must change the job that a backend makes of it, or be refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from xp.composition import compose, from_container
from xp.errors import XpError
from xp.fields.support import FieldSupport, Support
from xp.planning.backend import backend_of, spec_refusals
from xp.spec import RunSpec
from xp.worker.places import RunPaths

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
ESTIMATORS: tuple[dict[str, Any], ...] = tuple(
    {"estimator": estimator, "advantage_scale": scale, "advantage_fn": function, "critic": critic}
    for estimator, scale, function, critic in (
        ("grpo", "group_std", None, None),
        ("rloo", "none", None, None),
        ("maxrl", "none", None, None),
        ("reinforce_pp", "batch_std", None, None),
        ("reinforce_pp_baseline", "batch_std", None, None),
        ("gae", "batch_std", None, {"discount": 0.9, "gae_lambda": 0.8, "value_clip": 0.3}),
        ("custom", "none", "my_pkg.algorithms:another", None),
    )
)
"""Fields of an estimator, which are legal together only."""
LENGTHS = ("training.num_steps", "training.epochs")
"""Fields of which exactly one is null."""
SECTIONS: Mapping[str, Any] = {
    "model.lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": None},
    "algorithm.overlong": {"buffer_tokens": 64, "factor": 0.5},
    "backend.engine.quantization": "fp8",
    "backend.engine.kv_cache_dtype": "fp8",
    "backend.engine.speculative": {"method": "draft", "model": "Org/Small", "num_tokens": 3},
}
"""Field that may be null -> a legal value."""
ABOUT_THE_PLAN = {"model.name", "algorithm.name", "model.max_context_tokens"}
"""Names that the run's record has, and a limit that is checked by the plan: no job depends on them."""
LIVE = {
    "algorithm.importance_lower": "algorithm.importance_correction=token_truncate",
    "algorithm.importance_upper": "algorithm.importance_correction=token_truncate",
    "algorithm.mask_lower": "algorithm.importance_mask=token",
    "algorithm.mask_upper": "algorithm.importance_mask=token",
    "training.min_learning_rate": "training.lr_schedule=linear",
    "backend.engine.quantization": "algorithm.importance_correction=token_truncate",
    "backend.engine.quantized_model": "algorithm.importance_correction=token_truncate",
    "backend.engine.kv_cache_dtype": "algorithm.importance_correction=token_truncate",
    "algorithm.kl_estimator": "training.kl_coef=0.01",
    "algorithm.use_kl_in_reward": "training.kl_coef=0.01",
}
"""Field -> overrides without which it has no effect on any backend."""


@cache
def composed(words: tuple[str, ...]) -> RunSpec:
    """The spec of overrides, composed once in a process."""
    return compose(words)


def changed(spec: RunSpec, path: str) -> Iterator[RunSpec]:
    """The spec with other legal values at a key path."""
    container = spec.model_dump(mode="json")
    *parents, last = path.split(".")
    node: Any = container
    value: Any = spec
    for part in parents:
        node = node[part]
        value = getattr(value, part)
    now = getattr(value, last)
    before = dict(node)
    for other in others(now, path):
        node |= other if isinstance(other, Together) else {last: other}
        try:
            yield from_container(container)
        except XpError:
            continue
        finally:
            node |= before


class Together(dict[str, Any]):
    """Values of a field and of its neighbours, that are legal together only."""


OTHERS: Mapping[str, Any] = {
    "backend.engine.quantized_model": Together(
        {"quantization": "fp8", "quantized_model": "Org/Model-FP8"}
    ),
    "algorithm.loss_length": Together({"loss_aggregation": "constant", "loss_length": 7}),
    "algorithm.distill": {
        **dict.fromkeys(("revision", "url", "key")),
        "teacher": "Org/Other",
        "coef": 0.5,
        "beside_reward": True,
    },
    "algorithm.distill.url": "http://127.0.0.1:9/v1",
    "algorithm.distill.revision": "0" * 40,
}
"""Field -> the other value that is tried, whatever it is now."""


def others(now: Any, path: str) -> list[Any]:
    if path in ("algorithm.estimator", "algorithm.advantage_fn", "algorithm.critic"):
        name = path.rpartition(".")[2]
        variants: list[Any] = [Together(keys) for keys in ESTIMATORS if keys[name] != now]
        if name == "advantage_fn" and now:
            variants.insert(0, now[:-1])
        return variants
    if path in ("algorithm.policy_loss", "algorithm.sapo"):
        sapo = {"temperature_positive": 0.5, "temperature_negative": 2.0}
        losses = ({"policy_loss": "sapo", "sapo": sapo}, {"policy_loss": "clip", "sapo": None})
        return [Together(loss) for loss in losses if loss[path.rpartition(".")[2]] != now]
    if path in OTHERS:
        return [OTHERS[path]]
    if path in LENGTHS and now is None:
        other = next(key for key in LENGTHS if key != path).rpartition(".")[2]
        return [Together({path.rpartition(".")[2]: 7, other: None})]
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, Enum):
        return [member.value for member in type(now) if member is not now]
    if isinstance(now, int):
        return [now * 2, now // 2, now + 1]
    if isinstance(now, float):
        return [now / 2, now * 2, now + 1e-8, now + 0.1]
    if isinstance(now, str):
        return ["other"]
    if isinstance(now, dict):
        return [{"enable_thinking": False}]
    if path in SECTIONS:
        return [SECTIONS[path]]
    return [2, 8, 20_000]


def rendered(spec: RunSpec) -> str:
    """The jobs that a backend makes of a spec, without the copies of the spec in their files."""
    stages = backend_of(spec).render(spec, PLACES)
    return str(
        [
            (stage.name, dataclasses.replace(stage.job, files={}), without_spec(stage.job.files))
            for stage in stages
        ]
    )


def without_spec(files: Mapping[str, str]) -> str:
    """The text of a job's files without the spec that is in its configs: what is derived for the job."""
    texts = dict(files)
    for name, text in files.items():
        if name.endswith("/config.json"):
            values = json.loads(text)
            values.pop("spec", None)
            texts[name] = json.dumps(values, indent=2)
    return "".join(texts.values())


def says_so(meanings: Mapping[str, FieldSupport], field: str, package: str) -> bool:
    """Returns whether a backend's rows say that another value changes no job.

    Such a field is without effect, emulated, or read from the spec by a stage's program; its module is then named.

    Args:
        package: name of the backend's package.
    """
    read = re.compile(rf"nothing|.*\b(xp|{package}|stage's program)\b")
    relevant = [meaning for name, meaning in meanings.items() if f"{name}.".startswith(f"{field}.")]
    return all(
        meaning.support is Support.EMULATED or read.match(meaning.receives) for meaning in relevant
    )


def dropped(base: Sequence[str], fields: Iterable[str]) -> list[str]:
    """Fields whose change neither changes the job nor is refused.

    Args:
        base: overrides of a spec that the backend accepts.
        fields: key paths.
    """
    plain = composed(tuple(base))
    module = backend_of(plain)
    faults = []
    package = getattr(module, "__name__", "xp").partition(".")[0]
    of_plain = module.meanings(plain)
    for field in fields:
        if field in ABOUT_THE_PLAN or field.startswith(("model.architecture", "model.path")):
            continue
        spec = plain
        meanings = of_plain
        if field in LIVE:
            spec = composed((*base, LIVE[field]))
            meanings = module.meanings(spec)
        is_unsupported = meanings[field].support is Support.UNSUPPORTED
        if not is_unsupported and says_so(meanings, field, package):
            continue
        accepted = [
            other for other in changed(spec, field) if other != spec and not spec_refusals(other)
        ]
        if accepted and is_unsupported:
            faults.append(f"{field} is called unsupported and is not refused")
        elif any(
            rendered(other) == rendered(spec)
            and not says_so(module.meanings(other), field, package)
            for other in accepted
        ):
            faults.append(f"{field} changes nothing, and has neither a note nor a refusal")
    return faults
