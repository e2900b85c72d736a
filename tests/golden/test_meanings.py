"""What each trainer receives of every field under unlike settings. `make golden` rewrites it; review the diff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.golden.test_plans import check_reviewed
from xp.composition import compose
from xp.planning.backend import backend_of
from xp.spec import RunSpec

ROOM = Path(__file__).parent / "meanings"
LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
EVERYWHERE = {
    "dapo": [
        *(
            "algorithm=dapo",
            "algorithm.importance_correction=token_truncate",
            "algorithm.importance_mask=token",
        ),
        "training.max_staleness=1",
    ],
    "ppo": ["algorithm=ppo"],
    "opd": ["algorithm=opd", "algorithm.distill.teacher=ORG/TEACHER"],
    "adapters": [
        LORA,
        "training.kl_coef=0.1",
        "backend.engine.eager=true",
        "training.epochs=2",
        "training.num_steps=null",
    ],
    "apart": [
        "backend.engine.placement=separate",
        "backend.engine.accelerators=2",
        "backend.parallel.cpu_optimizer=true",
    ],
    "packed": [
        *(
            "training.max_tokens_per_micro_batch=20000",
            "algorithm=gspo",
            "evaluation.every=4",
            "sft.data=solve:a:b",
        ),
        *(
            "evaluation.top_k=5",
            "training.adam_eps=1e-6",
            "training.on_nonfinite=skip",
            "training.deterministic=true",
        ),
        *(
            "training.kl_coef=0.1",
            "training.reference_every=4",
            "backend.parallel.offload_reference=false",
        ),
    ],
}
ALONE = {
    "trl": {
        "laptop": ["hardware=cpu", "model=tiny", "env=whodunit_mini"],
        "fsdp2": ["backend.parallel.strategy=fsdp2"],
    },
    "skyrl": {
        "rehearsal": ["hardware=cpu", "model=tiny", "env=whodunit_mini"],
        "experts": [
            *("model=qwen3-30b-a3b", "hardware=h200x8", "backend.parallel.strategy=megatron"),
            *("backend.parallel.tensor=2", "backend.parallel.expert=4", "model.router_replay=true"),
        ],
    },
    "slime": {"experts": ["model=qwen3-30b-a3b", "hardware=h200x8", "backend.parallel.expert=4"]},
}


def texts_of(spec: RunSpec) -> dict[str, str]:
    meanings = backend_of(spec).meanings(spec).items()
    return {
        field: " | ".join(filter(None, (one.support, one.receives, one.note)))
        for field, one in meanings
    }


@pytest.mark.parametrize("backend", ALONE)
def test_the_meaning_of_each_field_is_the_reviewed_one(backend: str) -> None:
    base = [f"backend={backend}", "hardware=a100x4", "env=whodunit"]
    plain = texts_of(compose(base))
    rendered: dict[str, Mapping[str, str]] = {"plain": plain}
    for name, words in {**EVERYWHERE, **ALONE[backend]}.items():
        texts = texts_of(compose([*base, *words]))
        rendered[name] = {field: text for field, text in texts.items() if text != plain.get(field)}
    check_reviewed(ROOM / f"{backend}.json", json.dumps(rendered, indent=1) + "\n")
