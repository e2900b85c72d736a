"""Facts for a run's lock that only the training's process knows: versions as imported, digests of model and tasks.

A resumed training is compared with the facts of the attempts before it, before it changes anything.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from xp.envs.base import EnvFault
from xp.envs.config import load_provider
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_json
from xp.lib.digest import digest_of, file_digest, text_digest
from xp.lib.models.files import PARTS, local_directory
from xp.lib.models.weights import DEQUANTIZED, weight_faults
from xp.lib.reading import config_of, json_of
from xp.spec import BackendName
from xp.tasks.config import PrepareConfig
from xp.tasks.manifest import read_manifest
from xp.worker.checkpoint_weights import network_faults
from xp.worker.hub_model import SOURCES
from xp.worker.places import teacher_place
from xp.worker.stage import StageConfig

FILE: Final = "facts.json"
"""File of a train stage's directory."""
PACKAGES: Final = (
    "torch",
    "trl",
    "skyrl",
    "slime",
    "megatron-core",
    "transformer-engine",
    "vllm",
    "sglang",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "datasets",
    "flash-attn",
    "ray",
    "tinker",
    "numpy",
    "openreward",
    "openenv-core",
)
FIXED: Final = ("model.", "teacher.", "tokenizer", "chat_template", "tasks.")
"""Beginnings of the facts that a resumed training must keep; others may change, which is printed."""
NOT_RECORDED: Final = "not recorded"
"""Value of a fact that one side does not know, such as the weights of a model that was not downloaded yet."""
DRIVER: Final = Path("/proc/driver/nvidia/version")

Facts = Mapping[str, str]


def record_facts(config: StageConfig, model: str | Path, stage: Path, chat: ChatTokens) -> None:
    """Writes the facts of a training on its main process, and compares them with those of earlier attempts.

    Args:
        config: input of the training.
        model: Hugging Face id or directory of the initial weights.
        stage: directory of the train stage.
        chat: tokenizer of the model.

    Raises:
        XpError: (RUN_DIR) model, teacher, tokenizer, template or tasks are not those of an earlier attempt.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    converted = DEQUANTIZED if config.spec.backend.name is BackendName.SLIME else ()
    check_weights(local_directory(str(model), Path()), converted=converted)
    facts = dict(_facts(config, model, stage, chat))
    distill = config.spec.algorithm.distill
    if distill is not None and distill.url is None:
        teacher = local_directory(teacher_place(distill), Path())
        check_weights(teacher, allows_quantized=True)
        of_teacher = model_facts(teacher)
        facts |= {name.replace("model", "teacher"): value for name, value in of_teacher}
    earlier = [
        file
        for file in Path(config.places.run).glob(f"attempt_*/{stage.name}/{FILE}")
        if file.parent != stage
    ]
    if earlier:
        first = min(earlier, key=lambda file: (len(str(file)), str(file)))
        before: Facts = json_of(first, ExitCode.RUN_DIR)
        changed = list(differing(before, facts))
        refused = [line for line in changed if line.startswith(FIXED) and NOT_RECORDED not in line]
        if refused:
            raise XpError(
                f"the run cannot continue with another model or other tasks: {'; '.join(refused)}\n"
                "restore what was there at the first attempt, or start a new run",
                ExitCode.RUN_DIR,
            )
        for line in changed:
            print(f"differs from an earlier attempt: {line}", flush=True)
    write_json(stage / FILE, facts)


def check_weights(
    directory: Path | None, *, allows_quantized: bool = False, converted: Collection[str] = ()
) -> None:
    """Raises XpError(PLAN) for a checkpoint whose weights are not those that its config.json promises.

    Args:
        directory: Hugging Face directory. None, or one without config.json, is not checked.
        allows_quantized: see `weight_faults`.
        converted: see `weight_faults`.
    """
    if directory is None or not (directory / "config.json").is_file():
        return
    config = json_of(directory / "config.json", ExitCode.RUN_DIR)
    faults = list(
        weight_faults(directory, config, allows_quantized=allows_quantized, converted=converted)
    )
    faults = faults or network_faults(directory)
    if faults:
        raise XpError(
            "\n".join(f"model.path={directory}: {fault}" for fault in faults), ExitCode.PLAN
        )


def differing(before: Facts, after: Facts) -> Iterator[str]:
    """One line for each fact that is not the same: `name: before -> after`."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield f"{name}: {_short(before.get(name))} -> {_short(after.get(name))}"


def _short(value: str | None) -> str:
    if value is None:
        return NOT_RECORDED
    if re.fullmatch("[0-9a-f]{40,64}", value):
        return value[:12]
    return value


def _facts(
    config: StageConfig, model: str | Path, stage: Path, chat: ChatTokens
) -> Iterator[tuple[str, str]]:
    yield "versions.python", platform.python_version()
    for name in PACKAGES:
        version = _version(name)
        if version is not None:
            yield f"versions.{name}", version
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        yield "versions.cuda", str(torch.version.cuda)
    with suppress(OSError):
        match = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text().partition("\n")[0])
        yield "versions.driver", match[0] if match else "unknown"
    yield "tokenizer", text_digest(chat.tokenizer.backend_tokenizer.to_str())
    yield "chat_template", text_digest(str(chat.tokenizer.chat_template))
    yield from model_facts(local_directory(str(model), Path()))
    manifest = read_manifest(Path(config.places.tasks))
    yield "tasks.content", manifest.content_digest
    yield from _environments(
        config_of(stage / "prepare.json", PrepareConfig.from_json), manifest.environments
    )


def _version(name: str) -> str | None:
    """Version of a package as imported; of one that is not imported yet, as installed."""
    module = sys.modules.get(name.replace("-", "_"))
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def model_facts(directory: Path | None) -> Iterator[tuple[str, str]]:
    """Revision and digest of a model's weights; nothing for one that is not on this machine yet."""
    if directory is None:
        return
    blobs: Mapping[str, str] = {}
    if directory.parent.name == "snapshots":
        yield "model.revision", directory.name
    elif (directory / SOURCES).is_file():
        sources = json_of(directory / SOURCES, ExitCode.RUN_DIR)
        blobs = sources["files"]
        yield "model.revision", sources["commit"]
    files = sorted(
        {file for pattern in PARTS["weights (*.safetensors)"] for file in directory.glob(pattern)}
    )
    if files:
        digests = {file.name: _weights_digest(file, blobs) for file in files}
        yield "model.weights", digest_of(digests)
    yield "model.config", file_digest(directory / "config.json")


def _weights_digest(file: Path, blobs: Mapping[str, str]) -> str:
    """Digest of a file; in Hugging Face's cache, large files are named by it."""
    name = blobs.get(file.name, file.resolve().name)
    if re.fullmatch("[0-9a-f]{64}", name):
        return name
    return file_digest(file)


def _environments(config: PrepareConfig, prepared: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Version of each environment, from its server; one that the run serves has the version of its preparation."""
    for name, member in config.members.items():
        version = prepared.get(name, "")
        if member.env.serve is None and member.env.target is not None:
            with closing(load_provider(member.env, os.environ)) as provider, suppress(EnvFault):
                version = provider.version()  # The episodes report a fault.
        yield f"environments.{name}", version
