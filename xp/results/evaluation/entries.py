"""Lists the evaluations of a command line: each model on each environment, with its spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.composition import compose, options, parse_assignments, recorded_with
from xp.errors import ExitCode, XpError
from xp.execution.named import outputs_of, run_directory
from xp.planning.refusals import check_model_files
from xp.results.evaluation.command_line import ENDPOINT, EvalRequest
from xp.results.evaluation.settings import BEST
from xp.spec import EngineName, RunSpec
from xp.worker.places import start_place

CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_A_RUN: Final = (
    "env.",
    "evaluation.",
    "preparation.",
    "project",
    "seed",
    "tracking",
    "training.max_",
    "training.stop",
    "backend.engine.memory_fraction",
)
"""Keys that an evaluation of a run may set; the rest of its spec is the run's."""
WEIGHTS: Final = ("config.json", "*.safetensors", "adapter_config.json")
SFT: Final = "sft"
_START: Final = "training.initial_checkpoint"


@dataclass(frozen=True)
class Entry:
    """One model on one environment or mixture."""

    name: str
    """Name of the model, in tables and directories."""
    env: str
    spec: RunSpec
    model: Mapping[str, Any]
    """Identity of the model, for records."""
    directory: str | None = None
    """Hugging Face directory or id. None means that the model is behind an endpoint."""
    run: str | None = None


def entries(request: EvalRequest) -> list[Entry]:
    """Every model on every environment; raises XpError for a name that does not exist."""
    of_models = [entry for env in request.envs or (None,) for entry in _models(request, env)]
    return of_models + [
        _of_run(request, name, env) for env in request.envs or (None,) for name in request.runs
    ]


def _models(request: EvalRequest, env: str | None) -> Iterator[Entry]:
    of_env = env_words(env) if env else []
    words = [*of_env, *request.overrides]
    for model in request.models:
        if model == ENDPOINT:
            spec = compose(words, request.config_dirs)
            if spec.training.initial_checkpoint is not None:
                raise XpError(f"{_START}: an endpoint has the weights that it serves; leave it out")
            for name in ("top_k", "max_tokens_per_turn", "max_response_tokens"):
                if getattr(spec.evaluation, name) is not None:
                    fix = "set null; model.max_tokens limits each answer of an endpoint"
                    raise XpError(f"evaluation.{name}: the chat API has no such setting; {fix}")
            engine = request.settings.eval.engine
            is_alone = {*request.models} == {ENDPOINT} and not request.runs
            if engine is not EngineName.TRANSFORMERS and is_alone and spec.served_judge is None:
                fix = "an endpoint has an engine of its own: leave it out"
                raise XpError(f"eval.engine={engine} plays models of this machine; {fix}")
            url = request.settings.model.url
            for name in request.endpoint_names:
                yield Entry(
                    name,
                    "+".join(spec.env.members),
                    spec,
                    {"kind": "endpoint", "name": name, "url": url},
                )
            continue
        chosen = _chosen_model(model, request.config_dirs)
        spec = compose([*of_env, *chosen, *request.overrides], request.config_dirs)
        check_model_files(spec, trains=False)
        where = start_place(spec)
        name = spec.model.name
        if spec.training.initial_checkpoint is not None:
            name += f":{Path(spec.training.initial_checkpoint).name}"
        directory = _local(Path(spec.outputs), where)
        yield Entry(
            name, "+".join(spec.env.members), spec, _identity(name, where, directory), directory
        )


def _of_run(request: EvalRequest, name: str, env: str | None) -> Entry:
    from xp.planning.backend import backend_of
    from xp.planning.stages import task_set_place
    from xp.worker.places import RunPaths, policy_start

    run, _, step = name.partition("@")
    directory = run_directory(outputs_of(request.overrides), run)
    spec = _spec_of_run(directory, request, env)
    outputs = directory.parent.parent
    places = RunPaths(run=f"runs/{directory.name}", attempt=1, tasks=task_set_place(spec))
    if not step:
        where = places.model
    elif step == BEST:
        where = f"{places.checkpoints}/{BEST}"
    elif step == SFT:
        where = places.sft
    elif step.isdigit() and int(step):
        where = backend_of(spec).checkpoint(spec, places, int(step))
    elif step.isdigit():
        where = policy_start(spec, places)
    else:
        raise XpError(
            f"run={name}: after @ write a rollout step, 0 for the model before training, {SFT} or {BEST}"
        )
    model = _local(outputs, where)
    has_model = any((Path(model) / file).is_file() for file in ("config.json", WEIGHTS[2]))
    if where.startswith(f"{places.run}/") and not has_model:
        raise XpError(
            f"run={name}: there is no model at {model}{_steps(directory)}", ExitCode.RUN_DIR
        )
    label = f"{directory.name}@{step}" if step else directory.name
    return Entry(
        label,
        "+".join(spec.env.members),
        spec,
        _identity(label, where, model),
        model,
        directory.name,
    )


def _spec_of_run(directory: Path, request: EvalRequest, env: str | None) -> RunSpec:
    """The run's spec, with another environment and the keys that an evaluation may set."""
    from xp.composition.points import raise_faults, validated
    from xp.lib.reading import recorded_spec

    container = recorded_spec(directory / "spec.yaml")
    validated(container, directory.name)
    container["outputs"] = str(directory.parent.parent)
    words = [word for word in request.overrides if not word.startswith("outputs=")]
    if env is not None:
        of_env = [word for word in words if word.startswith("env.")]
        container["env"] = compose([*env_words(env), *of_env], request.config_dirs).env.model_dump(
            mode="json"
        )
        words = [word for word in words if word not in of_env]
    settable = "env, evaluation, preparation, seed, tracking, token limits and backend.engine.memory_fraction"
    raise_faults(
        [
            f"{key}: the run's own; an evaluation of a run sets {settable}"
            for key in parse_assignments(words)
            if not key.startswith(_OF_A_RUN)
        ]
    )
    return recorded_with(container, words)


def _steps(directory: Path) -> str:
    """Existing models, for a message."""
    if (directory / SFT).is_dir():
        return f"; the fine-tuned model is run={directory.name}@{SFT}"
    names = [path.name for path in (directory / "checkpoints").glob("*") if path.is_dir()]
    # checkpoint-9 is before checkpoint-13.
    ordered = sorted(names, key=lambda name: (len(name), name))
    if ordered:
        return f"; its checkpoints: {', '.join(ordered)}"
    return "; did the run get that far?"


def env_words(env: str) -> list[str]:
    """Overrides for an environment by its option, class, address or catalog's name."""
    if CLASS.fullmatch(env):
        return ["env=openreward", f"env.serve='{env}'"]
    if "/" in env:
        return ["env=openreward", f"env.target='{env}'"]
    return [f"env={env}"]


def _chosen_model(model: str, config_dirs: Sequence[Path]) -> list[str]:
    known = options("model", config_dirs)
    if model in known:
        return [f"model={model}"]
    if "/" not in model and not Path(model).is_dir():
        raise XpError(
            f"model={model}: no option of the group ({', '.join(known)}), no directory, and no ORG/NAME"
        )
    return ["model=hf", f"model.path='{model}'"]


def _local(outputs: Path, where: str) -> str:
    """Path of a model in the outputs; a hub's id is returned unchanged."""
    if where.startswith(("runs/", "models/")):
        return str(outputs / where)
    return where


def _identity(name: str, where: str, directory: str) -> dict[str, Any]:
    """Identity of a model, which distinguishes it from others of the same name.

    Args:
        where: a hub's id, or the path below the outputs root.
        directory: the same as a path. A user's directory is identified by its files' sizes and times; a model that xp
            made has a digest in its name.
    """
    path = Path(directory)
    states = {}
    if not where.startswith("models/"):
        for file in sorted(file for pattern in WEIGHTS for file in path.glob(pattern)):
            states[file.name] = [file.stat().st_size, file.stat().st_mtime_ns]
    content = {"files": states} if states else {"id": where}
    return {"kind": "transformers", "name": name, **content}
