"""Opens the engine of a model on this machine, for `xp eval` and the stage `evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from xp.episode.sized_pictures import SizedPictures
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.models.files import config_of
from xp.spec import EngineName, RunSpec
from xp.worker.adapters import adapters_of, base_of, load_policy
from xp.worker.engines import server, sglang
from xp.worker.engines.completions import MODEL, CompletionClient, ServerEngine
from xp.worker.engines.config import VLLMServer
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.vllm_pictures import PictureClient, VLLMPictures
from xp.worker.media import placeholder_ids
from xp.worker.token_budget import evaluation_sampling, evaluation_seed


@contextmanager
def local_engine(
    name: EngineName,
    settings: VLLMServer | None,
    model: str,
    chat: ChatTokens,
    spec: RunSpec,
    logs: Path,
    python: str = sys.executable,
) -> Iterator[OpenEngine]:
    """Context manager: loads a model, or serves it.

    Args:
        name: the engine.
        settings: arguments of its server. None means transformers in this process.
        model: Hugging Face id or directory, with or without adapters.
        chat: its tokenizer.
        spec: the run's or the evaluation's.
        logs: directory for a server's output.
        python: the interpreter with the server's engine.

    Raises:
        XpError: (RUNTIME) the weights cannot be loaded, or the server did not start; (ENGINE) it ended during use.
    """
    sampling = evaluation_sampling(spec)
    seed = evaluation_seed(spec)
    if settings is None:
        import torch
        from transformers.utils import logging

        from xp.worker.engines.transformers_engine import over_model

        torch.set_num_threads(spec.backend.num_threads)
        logging.disable_progress_bar()
        with loading(model, "weights"):
            policy = load_policy(model, spec.model.dtype.value).eval()
        if chat.pictures is not None and torch.cuda.is_available():
            policy = policy.to("cuda")
        yield over_model(policy, chat, sampling, seed)
        return
    log = logs / f"{name.value}.log"
    devices, _ = server.split_devices(settings.num_accelerators, 0)
    adapters = adapters_of(model)
    base = model if adapters is None else base_of(adapters)
    kind: Callable[..., CompletionClient]
    if name is EngineName.VLLM:
        settings, base, served_as = server.with_adapters(settings, model)
        running = server.running(settings, base, devices, log, python, served_as)
        kind = CompletionClient
        if chat.pictures is not None:
            pictures = VLLMPictures(SizedPictures(chat.pictures))
            kind = partial(PictureClient, pictures=pictures)
    else:
        arguments = settings.arguments
        kind = sglang.SGLangClient
        if adapters is not None:
            if not devices:  # it would pin their memory
                raise XpError(
                    "SGLang takes a model's adapters on accelerators alone; set vllm", ExitCode.PLAN
                )
            arguments = (*arguments, "--lora-paths", f"{MODEL}={adapters}")
            kind = sglang.AdapterClient
        running = sglang.running(arguments, base, devices, log, python)
    never = placeholder_ids(config_of(base, Path()) or {})
    with running as served:
        client = kind(served.url, sampling, chat.end_ids, str(log), key=served.key, never=never)
        yield lambda opening: ServerEngine(client, opening, seed, chat.holds_one_of(sampling.stop))


@contextmanager
def loading(model: str, part: str) -> Iterator[None]:
    """Context manager: converts transformers' error for a model that is not there, or lacks files, to an XpError.

    Args:
        model: Hugging Face directory or id.
        part: what is loaded.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split("\n", 1)[0].split()).rstrip(".")
        fault = f"no such model on the hub, no access, or no network ({reason})"
        fix = "check the name, set HF_TOKEN for a gated model, or give a directory"
        if Path(model).is_dir():
            fault = reason
            fix = "give a whole Hugging Face directory"
        raise XpError(
            f"model={model}: its {part} cannot be loaded: {fault}; {fix}", ExitCode.RUNTIME
        ) from error
