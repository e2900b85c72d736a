"""`training.initial_checkpoint=DIR`: where training starts, while the KL penalty stays relative to the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import CONFIGS
from tests.support.own_model import fault, model_at
from tests.support.own_model import no_hub as no_hub
from xp.backends.slime.worker.config import SlimeTrainConfig as SlimeConfig
from xp.composition import compose
from xp.composition.points import compose_recorded
from xp.errors import ExitCode, XpError
from xp.planning.plan import Plan, build_plan
from xp.worker.tiny_model import SHIPPED

BACKENDS = {
    "trl": ("hardware=a100x1",),
    "skyrl": ("hardware=a100x4",),
    "slime": ("hardware=h100x8", "backend.parallel.tensor=1"),
}


def checkpoint_at(directory: Path, **changes: Any) -> Path:
    """A whole Hugging Face directory, by the names of its files."""
    place = model_at(directory, **changes)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (place / name).write_text("{}")
    return place


def overrides(directory: Path, backend: str = "trl", *more: str) -> list[str]:
    base = model_at(directory / "base")
    place = (
        checkpoint_at(directory / "sft") if not (directory / "sft").exists() else directory / "sft"
    )
    own = (f"model.path={base}", f"training.initial_checkpoint={place}")
    return [
        "env=whodunit",
        f"backend={backend}",
        *BACKENDS[backend],
        "model=hf",
        "training.max_response_tokens=2048",
        *own,
        *more,
    ]


def config_of(plan: Plan, stage: str) -> dict[str, Any]:
    job = next(one.job for one in plan.stages if one.name == stage)
    found: dict[str, Any] = json.loads(
        next(text for name, text in job.files.items() if name.endswith(f"/{stage}/config.json"))
    )
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_starts_there_and_the_reference_is_the_model(backend: str, tmp_path: Path) -> None:
    plan = build_plan(compose(overrides(tmp_path, backend)), "r")
    train = CONFIGS[backend].from_json(json.dumps(config_of(plan, "train")))
    assert train.start_model == str(tmp_path / "sft")
    assert train.reference == str(tmp_path / "base")
    assert config_of(plan, "evaluate")["models"]["before"] == str(tmp_path / "sft")
    prepare = next(one.job for one in plan.stages if one.name == "prepare")
    reader = next(text for name, text in prepare.files.items() if name.endswith("reader.json"))
    assert json.loads(reader)["place"] == str(tmp_path / "sft")


def test_slime_loads_it_while_the_run_has_no_checkpoint(tmp_path: Path) -> None:
    plan = build_plan(compose(overrides(tmp_path, "slime")), "r")
    first = SlimeConfig.from_json(json.dumps(config_of(plan, "train"))).from_the_start()
    flags = first.command.flags
    values = [flags[flags.index(name) + 1] for name in ("--load", "--hf-checkpoint", "--ref-load")]
    assert values == [str(tmp_path / "sft"), str(tmp_path / "sft"), str(tmp_path / "base")]


def test_slime_resumes_with_the_reference_of_its_last_copy(tmp_path: Path) -> None:
    words = ("training.reference_every=2", "training.kl_coef=0.1")
    plan = build_plan(compose([*overrides(tmp_path, "slime"), *words]), "r")
    config = SlimeConfig.from_json(json.dumps(config_of(plan, "train")))

    def reference(latest: int, checkpoints: list[int]) -> tuple[str, str | None]:
        command = config.resumed(latest, checkpoints).command
        flags = command.flags
        assert ("--ref-load" in command.model_flags) is ("--ref-ckpt-step" not in flags)
        step = flags[flags.index("--ref-ckpt-step") + 1] if "--ref-ckpt-step" in flags else None
        return flags[flags.index("--ref-load") + 1], step

    assert reference(0, [0]) == (str(tmp_path / "base"), None)
    assert reference(4, [3, 4]) == ("runs/r/checkpoints", "3")
    with pytest.raises(
        XpError, match=r"policy of step 4, and .* has no complete checkpoint"
    ) as caught:
        config.resumed(4, [4])
    assert caught.value.code is ExitCode.PLAN


def test_what_is_no_whole_model_is_refused(tmp_path: Path) -> None:
    base = model_at(tmp_path / "base")
    place = tmp_path / "start"
    asked = ("model=hf", f"model.path={base}", f"training.initial_checkpoint={place}")
    assert "no such directory" in fault(*asked)
    place.mkdir()
    assert "a Megatron checkpoint must be exported first" in fault(*asked)
    (place / "adapter_config.json").write_text("{}")
    assert "the directory has adapters" in fault(*asked)
    (model_at(place) / "model.safetensors").unlink()
    assert "the directory has no weights" in fault(*asked)


def test_another_network_is_refused(tmp_path: Path) -> None:
    base = model_at(tmp_path / "base")
    start = checkpoint_at(tmp_path / "start", hidden_size=1024, num_hidden_layers=2)
    said = fault("model=hf", f"model.path={base}", f"training.initial_checkpoint={start}")
    assert "hidden_size is 576, and config.json has 1024" in said
    assert f"set model=hf model.path={start}" in said
    tiny = fault(f"training.initial_checkpoint={start}")
    assert "not the network of model=tiny: " in tiny


def test_what_a_backend_cannot_start_from_is_refused(tmp_path: Path) -> None:
    adapters = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    said = fault(*overrides(tmp_path, "trl", adapters))
    assert "TRL's reference is the start without the adapters" in said
    build_plan(compose(overrides(tmp_path, "trl", adapters, "training.kl_coef=0.0")), "r")
    build_plan(compose(overrides(tmp_path, "skyrl", adapters)), "r")
    critic = ("algorithm=ppo", "backend.convert_model=true")
    assert "Slime's critic starts from a Megatron checkpoint" in fault(
        *overrides(tmp_path, "slime", *critic)
    )


def test_other_paths_of_a_recorded_spec_are_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = compose(["env=multiply"]).model_dump(mode="json")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED, tmp_path / "same")
    shutil.copytree(SHIPPED, tmp_path / "other")
    config = json.loads((SHIPPED / "config.json").read_text())
    (tmp_path / "other/config.json").write_text(json.dumps({**config, "hidden_size": 8}))
    (tmp_path / "talk.jsonl").write_text("{}\n")
    changes = ["training.initial_checkpoint=./same", "sft.data=./talk.jsonl", "model.path=./same"]
    spec = compose_recorded(recorded, changes, "run")
    assert spec.training.initial_checkpoint == spec.model.path == str(tmp_path / "same")
    assert spec.sft.data == str(tmp_path / "talk.jsonl")
    for change, words in (
        ("model.path=./other", "not the network of model=tiny: hidden_size"),
        ("training.initial_checkpoint=./none", "no such directory"),
        ("sft.data=./none.jsonl", "no such file"),
    ):
        with pytest.raises(XpError, match=words):
            compose_recorded(recorded, [change], "run")
