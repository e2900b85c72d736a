"""A Hugging Face model on this machine, with the engines of TRL's `evaluate` stage."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from xp.backends.trl.control.processes import evaluation_server
from xp.builtin.tiny_model import MANIFEST, PLACE
from xp.engines.completions import MODEL
from xp.engines.conversation import OpenEngine
from xp.engines.judge_server import serving_judge
from xp.envs.config import Dialect
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.evaluation.entries import Entry
from xp.evaluation.settings import Engine, Eval
from xp.lib.verified import damaged
from xp.models.clock import CLOCK, with_date
from xp.planning.backend import RunPaths
from xp.planning.engine import no_own_decoding
from xp.planning.episode import chat_of, judge_server, sampling_of
from xp.planning.rows import longest_in_engine
from xp.planning.stages import model_place, model_stages
from xp.spec import RunSpec
from xp.tasks.row import TaskRow
from xp.worker.adapters import adapters_of, base_of, load_policy
from xp.worker.played import PlayedEpisode
from xp.worker.publish import check_there
from xp.worker.stage import Sampling

ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph"),
)
"""Arguments for any CPU; SGLang's default `intel_amx` needs one of Intel's newer CPUs."""
CACHE_TOKENS_ON_CPU = 32
"""Number of longest episodes in the cache on a CPU, where `--mem-fraction-static` would count the whole memory."""


@contextmanager
def local_model(entry: Entry, how: Eval, place: Path) -> Iterator[LocalModel]:
    """Context manager: loads a model, or serves it.

    Args:
        entry: the evaluation, with the model's directory or id.
        how: settings, with the engine.
        place: directory of the evaluation.
    """
    from transformers import AutoTokenizer

    from xp.backends.trl.worker.process import quiet_trainer

    directory = entry.directory
    assert directory is not None
    quiet_trainer(entry.spec.backend.num_threads)
    ensure_made(entry.spec, directory)
    check_there(directory)
    with _loading(directory, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(directory)
    chat = ChatTokens(tokenizer, chat_of(entry.spec))
    with_date(str(tokenizer.chat_template), chat.chat.arguments.get(CLOCK))
    sampling = sampling_of(entry.spec, evaluates=True)
    with ENGINES[how.engine](directory, entry.spec, chat, sampling, how.python, place) as open_engine:
        yield LocalModel(chat, sampling.max_prompt_tokens, open_engine)


def served_judge(spec: RunSpec, how: Eval, place: Path) -> AbstractContextManager[dict[str, str]]:
    """Context manager: serves the judge of an evaluation, and yields the variables of its episodes; empty if xp serves
    none."""
    if spec.served_judge is None:
        return nullcontext({})
    log, is_sglang = str(place / "judge.log"), how.engine is Engine.SGLANG
    server = judge_server(spec, spec.served_judge, log, is_sglang=is_sglang)
    return serving_judge(server, _python_with(how.engine, how.python))


class LocalModel:
    """A model with its tokenizer.

    Args:
        chat: its tokenizer.
        max_prompt_tokens: longest prompt, in tokens.
        open_engine: makes its engine.
    """

    def __init__(self, chat: ChatTokens, max_prompt_tokens: int, open_engine: OpenEngine) -> None:
        self.chat, self.max_prompt_tokens, self._open_engine = chat, max_prompt_tokens, open_engine

    def dialect(self) -> Dialect:
        """Dialect of the spec, or of the model's chat template if the spec has `auto`."""
        from xp.episode.auto_dialect import detect

        return detect(self.chat.tokenizer, self.chat.chat.arguments)

    def play(self, batch: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture) -> list[PlayedEpisode]:
        """Plays a batch; an episode depends on its task, its sample's number and the seed.

        Args:
            batch: rows with numbers of samples.
        """
        from xp.engines.play import play_each

        return [rollout.record for rollout in play_each(self._open_engine, self.chat, batch, mix)]


@contextmanager
def _transformers(
    directory: str, spec: RunSpec, chat: ChatTokens, sampling: Sampling, *_: object
) -> Iterator[OpenEngine]:
    from xp.engines.transformers_engine import over_model

    with _loading(directory, "weights"):
        model = load_policy(directory, spec.model.dtype.value).eval()
    yield over_model(model, chat, sampling, f"{sampling.seed}/eval")


@contextmanager
def _served(
    engine: Engine,
    directory: str,
    spec: RunSpec,
    chat: ChatTokens,
    sampling: Sampling,
    python: str | None,
    place: Path,
) -> Iterator[OpenEngine]:
    from xp.engines import server, sglang
    from xp.engines.completions import CompletionClient, ServerEngine

    program, log = _python_with(engine, python), place / f"{engine.value}.log"
    kind: type[CompletionClient]
    if engine is Engine.VLLM:
        settings, model, name = server.with_adapters(evaluation_server(spec), directory)
        devices, _ = server.split_devices(settings.num_accelerators, 0)
        running, kind = server.running(settings, model, devices, log, program, name), CompletionClient
    else:
        is_on_cpu = spec.hardware.accelerator == "cpu"
        devices, _ = server.split_devices(0 if is_on_cpu else spec.trainer_accelerators, 0)
        arguments, adapters = sglang_arguments(spec), adapters_of(directory)
        kind = sglang.SGLangClient
        if adapters is not None and is_on_cpu:  # it would pin their memory
            reason = "SGLang takes a model's adapters on accelerators alone; leave it out"
            raise XpError(f"eval.engine={engine}: {reason}", ExitCode.PLAN)
        if adapters is not None:
            arguments, directory = (*arguments, "--lora-paths", f"{MODEL}={adapters}"), base_of(adapters)
            kind = sglang.AdapterClient
        running = sglang.running(arguments, directory, devices, log, program)
    is_stop, seed = chat.holds_one_of(sampling.stop), f"{sampling.seed}/eval"
    with running as served:
        client = kind(served.url, sampling, chat.end_ids, str(log), key=served.key)
        yield lambda opening: ServerEngine(client, opening, seed, is_stop)


ENGINES: Final[Mapping[Engine, Callable[..., AbstractContextManager[OpenEngine]]]] = {
    Engine.TRANSFORMERS: _transformers,
    Engine.VLLM: partial(_served, Engine.VLLM),
    Engine.SGLANG: partial(_served, Engine.SGLANG),
}


@contextmanager
def _loading(directory: str, part: str) -> Iterator[None]:
    """Context manager: converts transformers' error for a model that is not there, or lacks files, to an XpError.

    Args:
        directory: Hugging Face directory or id.
        part: what is loaded.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        fault = f"model={directory}: its {part} cannot be loaded"
        reason = " ".join(str(error).split("\n", 1)[0].split()).rstrip(".")
        if Path(directory).is_dir():
            raise XpError(f"{fault}: {reason}; give a whole Hugging Face directory", ExitCode.RUNTIME) from error
        raise XpError(
            f"{fault}: no such model on the hub, no access, or no network ({reason}); check the name, set HF_TOKEN for"
            " a gated model, or give a directory",
            ExitCode.RUNTIME,
        ) from error


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
    if how.engine is Engine.TRANSFORMERS and is_local and (fault := no_own_decoding(spec)) is not None:
        raise XpError(f"eval.engine={how.engine.value}: {fault}", ExitCode.PLAN)
    is_on_cpu, reason = spec.hardware.accelerator == "cpu", ""
    if how.engine is Engine.TRANSFORMERS or (is_on_cpu and how.engine is not Engine.VLLM):
        engines = "vllm (on a CPU)" if is_on_cpu else "vllm or sglang"
        reason = f"eval.engine={how.engine.value} cannot serve it; set eval.engine={engines}"
    elif is_local and not is_on_cpu and not spec.trainer_accelerators:
        reason = "it leaves the evaluated model no accelerator; choose a larger hardware option"
    if spec.served_judge is not None and reason:
        fix = "or start its server yourself, and set serve=null and url"
        raise XpError(f"env.judge.model.serve: {reason}; {fix}", ExitCode.PLAN)
    if how.engine is not Engine.TRANSFORMERS:
        _python_with(how.engine, how.python)


def _python_with(engine: Engine, python: str | None) -> str:
    """The interpreter with the engine; raises XpError(RUNTIME) if it lacks the engine."""
    program = sys.executable if python is None else str(Path(python).expanduser().absolute())
    lacks_it = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({engine.value!r}) is None)"
    try:
        is_installed = subprocess.run([program, "-c", lacks_it], cwd="/", check=False).returncode == 0
    except OSError:
        is_installed = False
    if not is_installed:
        name = engine.spelling
        raise XpError(
            f"eval.engine={engine.value}: {program} has no {name}; give eval.python=PATH of a Python that has it",
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
    job, exists = stages[0].job, (outputs / place).exists()
    # The manifest of a hub's model has no digests: the hub's client has compared them.
    manifest = outputs / place / MANIFEST
    fault = damaged(manifest) if exists and spec.model.path == PLACE else None
    if exists and fault is None:
        return
    if exists:
        print(f"model: {place} is damaged ({fault}); it is made again", file=sys.stderr, flush=True)
    (config,) = job.files.values()
    verb = "copied" if spec.model.path == PLACE else "fetched"
    print(f"model: {spec.model.name} is {verb}, which is done once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.json"
        file.write_text(config, encoding="utf-8")
        outputs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *job.argv[1:-1], str(file)]
        done = subprocess.run(command, cwd=outputs, env={**os.environ, **job.env}, stdout=sys.stderr, check=False)
    if done.returncode:
        raise XpError(f"the model {spec.model.name} could not be made; the messages are above", ExitCode.STAGE_FAILED)


def sglang_arguments(spec: RunSpec) -> tuple[str, ...]:
    """Arguments of SGLang's server, without model, address and port."""
    engine, is_on_cpu = spec.backend.engine, spec.hardware.accelerator == "cpu"
    longest = longest_in_engine(spec)
    num_accelerators = 0 if is_on_cpu else spec.trainer_accelerators
    return (
        *("--tp-size", str(engine.tensor_parallel)),
        *("--dp-size", str(max(1, num_accelerators // engine.tensor_parallel))),
        *("--mem-fraction-static", str(engine.memory_fraction)),
        *("--max-running-requests", str(engine.max_sequences)),
        *(("--chunked-prefill-size", str(engine.max_batched_tokens)) if engine.max_batched_tokens else ()),
        *("--context-length", str(longest)),
        *("--dtype", spec.model.dtype.value),
        *("--random-seed", str(spec.seed)),
        *(() if engine.prefix_caching else ("--disable-radix-cache",)),
        *(("--quantization", engine.quantization.value) if engine.quantization else ()),
        *(("--kv-cache-dtype", "fp8_e4m3") if engine.kv_cache_dtype else ()),
        *(("--ep-size", str(engine.expert_parallel)) if engine.expert_parallel > 1 else ()),
        *(("--disable-cuda-graph",) if engine.eager and not is_on_cpu else ()),
        # Without the model's own sampling defaults: every request has all parameters.
        *("--sampling-defaults", "openai"),
        # SGLang's warm-up would send a request without the key.
        *("--skip-server-warmup", "--log-level-http", "warning"),
        *((*ON_CPU, "--max-total-tokens", str(CACHE_TOKENS_ON_CPU * longest)) if is_on_cpu else ()),
    )
