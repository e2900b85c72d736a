"""A Hugging Face model on this machine, with the engines of the stage `evaluate`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import has_module
from xp.lib.verified import damaged
from xp.planning.engine_arguments import READS_PICTURES, evaluation_server
from xp.planning.episode import judge_server, spec_in_job
from xp.planning.stages import model_stages
from xp.results.evaluation.entries import Entry
from xp.results.evaluation.settings import Eval
from xp.spec import EngineName, RunSpec
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.judge_server import serving_judge
from xp.worker.engines.local import loading, local_engine
from xp.worker.places import RunPaths, model_place
from xp.worker.publish import check_there
from xp.worker.tasks import model_chat
from xp.worker.tiny_model import MANIFEST, MODELS


@contextmanager
def local_model(entry: Entry, how: Eval, output: Path) -> Iterator[LocalModel]:
    """Context manager: loads a model, or serves it.

    Args:
        entry: the evaluation, with the model's directory or id.
        how: settings, with the engine.
        output: directory of the evaluation.
    """
    directory = entry.directory
    assert directory is not None
    ensure_made(entry.spec, directory)
    check_there(directory)
    with loading(directory, "tokenizer"):
        spec = spec_in_job(entry.spec)
        store = PictureStore(Path(entry.spec.outputs).absolute() / DIRECTORY)
        chat = model_chat(directory, spec, store=store)
    server = evaluation_server(entry.spec, how.engine)
    python = _python_with(how.engine, how.python) if server else sys.executable
    with local_engine(
        how.engine, server, directory, chat, entry.spec, output, python
    ) as open_engine:
        yield LocalModel(chat, open_engine)


def served_judge(spec: RunSpec, how: Eval, output: Path) -> AbstractContextManager[dict[str, str]]:
    """Context manager: serves the judge of an evaluation, and yields the variables of its episodes; empty if xp serves
    none."""
    if spec.served_judge is None:
        return nullcontext({})
    log = str(output / "judge.log")
    is_sglang = how.engine is EngineName.SGLANG
    server = judge_server(spec, spec.served_judge, log, is_sglang=is_sglang)
    return serving_judge(server, _python_with(how.engine, how.python))


@dataclass(frozen=True)
class LocalModel:
    """A model with its tokenizer, on an engine."""

    chat: ChatTokens
    open_engine: OpenEngine


def check_engine(spec: RunSpec, how: Eval, *, is_local: bool) -> None:
    """Checks the engine of an evaluation.

    Args:
        spec: the evaluation's.
        how: its settings.
        is_local: whether the model is played on this machine, beside a judge that must be served.

    Raises:
        XpError: RUNTIME if `eval.engine` is not installed in its Python; PLAN if it cannot play the model, or serve
            the judge.
    """
    is_on_cpu = spec.hardware.accelerator == "cpu"
    reason = ""
    if how.engine is EngineName.TRANSFORMERS or (is_on_cpu and how.engine is not EngineName.VLLM):
        engines = "vllm (on a CPU)" if is_on_cpu else "vllm or sglang"
        reason = f"eval.engine={how.engine.value} cannot serve it; set eval.engine={engines}"
    elif is_local and not is_on_cpu and not spec.trainer_accelerators:
        reason = "it leaves the evaluated model no accelerator; choose a larger hardware option"
    if spec.served_judge is not None and reason:
        fix = "or start its server yourself, and set serve=null and url"
        raise XpError(f"env.judge.model.serve: {reason}; {fix}", ExitCode.PLAN)
    if how.engine is EngineName.SGLANG and spec.model.images is not None:
        raise XpError(
            "model.images: xp gives SGLang no pictures; set eval.engine=vllm, or model.images=null",
            ExitCode.PLAN,
        )
    if how.engine is not EngineName.TRANSFORMERS:
        program = _python_with(how.engine, how.python)
        if spec.model.images is not None and not has_module(program, READS_PICTURES):
            raise XpError(
                f"model.images: vLLM of {program} has no server that takes tokens with images; give eval.python=PATH of a"
                " Python with vLLM 0.30 or later, or set eval.engine=transformers",
                ExitCode.RUNTIME,
            )


def _python_with(engine: EngineName, python: str | None) -> str:
    """The interpreter with the engine; raises XpError(RUNTIME) if it lacks the engine."""
    program = sys.executable
    if python is not None:
        program = str(Path(python).expanduser().absolute())
    if not has_module(program, engine.value):
        raise XpError(
            f"eval.engine={engine.value}: {program} lacks it; give eval.python=PATH of a Python that has it",
            ExitCode.RUNTIME,
        )
    return program


def ensure_made(spec: RunSpec, directory: str) -> None:
    """Copies the model of xp's own, or fetches a hub's, if it is not there or damaged; raises XpError if that fails."""
    place = model_place(spec.model)
    outputs = Path(spec.outputs).absolute()
    stages = model_stages(spec, RunPaths(run="runs/unused", attempt=1, tasks="tasks/unused"))
    if not stages or Path(directory).absolute() != outputs / place:
        return
    job = stages[0].job
    if (outputs / place).exists():
        # The manifest of a hub's model has no digests: the hub's client has compared them.
        fault = damaged(outputs / place / MANIFEST) if spec.model.path in MODELS else None
        if fault is None:
            return
        print(f"model: {place} is damaged ({fault}); it is made again", file=sys.stderr, flush=True)
    (config,) = job.files.values()
    verb = "copied" if spec.model.path in MODELS else "fetched"
    print(f"model: {spec.model.name} is {verb}, which is done once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "config.json"
        file.write_text(config, encoding="utf-8")
        outputs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *job.argv[1:-1], str(file)]
        done = subprocess.run(
            command, cwd=outputs, env={**os.environ, **job.env}, stdout=sys.stderr, check=False
        )
    if done.returncode:
        raise XpError(
            f"the model {spec.model.name} could not be made; the messages are above",
            ExitCode.STAGE_FAILED,
        )
