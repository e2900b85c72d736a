"""The `model` stage: makes a model, and caches it by the digest of its inputs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from xp.builtin.model.scripted_play import Player
from xp.errors import ExitCode, XpError
from xp.job import Job, Runtime, Stage
from xp.lib.digest import bytes_digest, text_digest
from xp.planning.backend import RunPaths
from xp.planning.stages.needs import QUIET, cpu_environment, host_resources
from xp.spec import BuildSpec, Model, RunSpec

MAKER = "xp.builtin.model.tiny_model"
PACKAGES = ("torch", "transformers", "trl", "tokenizers")


def model_place(model: Model) -> str:
    """Location of the untrained policy: a Hugging Face id, a directory, or the built model's path in the outputs."""
    if model.path is not None:
        return model.path
    return f"models/{model.name}-{made_from(model)[:16]}"


def made_from(model: Model) -> str:
    """Digest of everything that a built model is made from: its `build` object, its context, and xp's code for it."""
    assert model.build is not None  # Model's validator: exactly one of path and build
    return text_digest(json.dumps([build_arguments(model.build), model.max_context_tokens, _maker_digest()]))


def model_config(model: Model, target: str, num_threads: int | None) -> str:
    """Input of the stage's program, as JSON."""
    assert model.build is not None
    config = {
        "output_dir": target,
        "seed": model.build.seed,
        "max_context_tokens": model.max_context_tokens,
        "num_threads": num_threads,
        "made_from": made_from(model),
        "build": build_arguments(model.build),
    }
    return json.dumps(config, indent=2) + "\n"


def start_place(spec: RunSpec) -> str:
    """Location of the weights that training starts from, with their tokenizer."""
    return spec.training.initial_checkpoint or model_place(spec.model)


def model_stage(spec: RunSpec, places: RunPaths) -> Stage:
    """Stage that makes the model, or copies it if xp ships it; skipped if the same model exists."""
    assert spec.model.build is not None
    here, target = places.stage("model"), model_place(spec.model)
    job = Job(
        argv=("python", "-m", MAKER, f"{here}/config.json"),
        files={f"{here}/config.json": model_config(spec.model, target, spec.backend.num_threads)},
        outputs=(f"{target}/manifest.json", f"{target}/model.safetensors"),
        resources=host_resources(spec),
        runtime=Runtime(packages=PACKAGES),
        env={**cpu_environment(spec.backend.num_threads), **QUIET},
    )
    return Stage("model", job, needs=("prepare",), done=f"{target}/manifest.json")


def build_arguments(build: BuildSpec) -> dict[str, Any]:
    """The builder's arguments: sizes, rates, and the share of each of its players.

    Raises:
        XpError: the builder has no such player.
    """
    imperfect = [player.value for player in Player if player is not Player.DILIGENT]
    if unknown := sorted(set(build.players) - set(imperfect)):
        raise XpError(
            f"model.build.players: no player is called {unknown[0]}; there are {', '.join(imperfect)}", ExitCode.CONFIG
        )
    shares = {f"{player}_share": build.players.get(player, 0.0) for player in imperfect}
    return build.model_dump(mode="json", exclude={"players"}) | shares


@cache
def _maker_digest() -> str:
    """Digest of the code that makes the model; a change of the code gives a new model."""
    package = Path(__file__).resolve().parents[2] / "builtin"
    files = [*sorted(package.glob("model/*.py")), package / "mystery.py"]
    return bytes_digest(b"".join(file.read_bytes() for file in files))
