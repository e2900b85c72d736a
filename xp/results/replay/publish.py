"""Publishes a run: its model with a card, and its episodes as a data set, into a directory or on the hub."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from xp import __version__
from xp.composition.points import to_yaml, validated
from xp.errors import ExitCode, XpError
from xp.execution.lock import FILE as LOCK
from xp.execution.lock import read_lock
from xp.execution.record import read_record
from xp.execution.run_directory import SPEC, resource_errors
from xp.lib.models.files import local_directory
from xp.lib.reading import json_of, read_text, recorded_spec
from xp.lib.text import counted
from xp.lib.verified import DIGESTS, VERIFIED, damaged
from xp.planning.episode import user_modules
from xp.results.replay.bundle import figures_of, refuse_secrets
from xp.spec import RunSpec
from xp.worker.adapters import ADAPTER, CONFIG
from xp.worker.places import model_place, start_place

HUB: Final = "hub:"
CARD: Final = "README.md"
ADAPTERS: Final = f"{ADAPTER}/{CONFIG}"
EPISODES: Final = "-episodes"
"""End of the data set's name, after the model's."""
_HUB_ID: Final = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
Files = Mapping[str, Path | str]
"""Name in the repository -> the file, or its text."""


def model_files(run: Path) -> dict[str, Path | str]:
    """Files of the model's repository: weights, tokenizer, adapters of a hub's model, spec, lock and card.

    Raises:
        XpError: (RUN_DIR) the run has no model, or a damaged one; (SECRET) a text has the value of a secret.
    """
    model = run / "model"
    spec = validated(recorded_spec(run / SPEC), run.name)
    if not any(model.glob("*.safetensors")):
        raise XpError(
            f"{run.name} has no model at {model}: only a finished training has one",
            ExitCode.RUN_DIR,
        )
    fault = damaged(model / DIGESTS)
    if fault is not None:
        fix = "resume the run, which makes it again"
        raise XpError(f"the model at {model} is damaged: {fault}; {fix}", ExitCode.RUN_DIR)
    by_path = {str(file.relative_to(model)): file for file in _below(model)}
    # The hub has digests of its own.
    files: dict[str, Path | str] = {
        name: file for name, file in by_path.items() if name not in (DIGESTS, VERIFIED)
    }
    if ADAPTERS in by_path:
        config = json_of(by_path[ADAPTERS], ExitCode.RUN_DIR)
        base = None
        if config["base_model_name_or_path"].endswith(model_place(spec.model)):
            base = _hubs_model(spec)
        config |= {
            "base_model_name_or_path": base or spec.model.name,
            "revision": base and spec.model.revision,
        }
        files[ADAPTERS] = json.dumps(config, indent=2) + "\n"
    config = json_of(model / "config.json", ExitCode.RUN_DIR)
    dtype = stored_dtype(model)
    if config.get("dtype") != dtype:  # a trainer may leave that of the base model
        files["config.json"] = json.dumps({**config, "dtype": dtype}, indent=2) + "\n"
    files |= {SPEC: to_yaml(spec), LOCK: read_lock(run).to_json(), CARD: card(run, spec)}
    texts = {
        name: file
        for name, file in files.items()
        if isinstance(file, str) or file.suffix in (".json", ".jinja")
    }
    refuse_secrets(texts, read_record(run).secrets)
    return files


def stored_dtype(model: Path) -> str:
    """Data type of the weights in a model's files."""
    with min(model.glob("*.safetensors")).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    name = Counter(
        str(tensor["dtype"]) for tensor in header.values() if "dtype" in tensor
    ).most_common(1)[0][0]
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(name, name)


def episode_files(run: Path) -> dict[str, Path | str]:
    """Files of the data set's repository: the recorded episodes, and a card with a configuration for each phase."""
    episodes = {
        f"{file.parent.parent.parent.name}/{file.parent.parent.name}/{file.name}": file
        for file in sorted(run.glob("attempt_*/*/trajectories/*.jsonl"))
        if not file.is_symlink()
    }
    phases = sorted({Path(name).stem for name in episodes})
    head = {
        "tags": ["xp", "reinforcement-learning"],
        "configs": [{"config_name": phase, "data_files": f"*/*/{phase}.jsonl"} for phase in phases],
    }
    text = f"# Episodes of {run.name}\n\nOne episode in each line: messages, calls, reward and its parts.\n"
    files: dict[str, Path | str] = {**episodes, CARD: _card(head, text)}
    refuse_secrets(files, read_record(run).secrets)
    return files


def card(run: Path, spec: RunSpec) -> str:
    """The model card: how to do it again, and the figures with their intervals."""
    base = _hubs_model(spec)
    licence = licence_of(local_directory(start_place(spec), run.parent.parent))
    link = licence.pop("license_link", "")
    # A file beside the base model is not published.
    if base and link and ":" not in link:
        link = f"https://huggingface.co/{base}/blob/{spec.model.revision or 'main'}/{link}"
    if ":" in link:
        licence["license_link"] = link
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["xp", "reinforcement-learning", spec.algorithm.name],
        **licence,
    }
    if base:
        head |= {"base_model": base}
    envs = ", ".join(spec.env.members)
    facts = read_lock(run).facts
    figures = "\n".join(
        f"| {name} training | {_estimate(figures['reward'])} | {_estimate(figures['passes'])} |"
        for name, figures in figures_of(run).items()
    )
    names = sorted(name for name in facts if name.startswith("versions."))
    versions = "\n".join(f"| {name.partition('.')[2]} | `{facts[name]}` |" for name in names)
    start = f"`{spec.model.name}`"
    if base:
        start = f"[{base}](https://huggingface.co/{base})"
    if spec.model.revision:
        start += f" at commit `{spec.model.revision}`"
    dtype = stored_dtype(run / "model")
    apart = ""
    if (run / "model" / ADAPTERS).is_file():
        apart = f" Its adapters alone are in `{ADAPTER}/`."
    return _card(
        head,
        f"# {run.name}\n\n{start}, trained with {spec.algorithm.name} in {envs} by xp {__version__}"
        f" (backend {spec.backend.name}). The licence is that of the base model.\n\n"
        f"The weights are in {dtype}; the training computed in {spec.model.dtype}.{apart}\n\n"
        f"## Held-out reward\n\n| model | mean reward (95 %) | passes (95 %) |\n|---|---|---|\n{figures}\n\n"
        f"## Do it again\n\n    python -m xp run {SPEC}\n\n{_not_published(spec)}"
        f"`{LOCK}` names what the run was made of; `python -m xp runs compare` shows what differs from another run.\n\n"
        f"| part | version |\n|---|---|\n{versions}\n",
    )


def _not_published(spec: RunSpec) -> str:
    """A sentence about the user's own code, which is not in the repository; empty if there is none."""
    modules = [f"`{name}`" for name in user_modules(spec)]
    if not modules:
        return ""
    return f"It imports {' and '.join(modules)}, not published here; `python -m xp runs bundle` hands them on.\n\n"


def _hubs_model(spec: RunSpec) -> str | None:
    """Hub's id of the model. None means that it is a directory, or comes with xp."""
    path = spec.model.path
    if Path(path).is_absolute() or path.startswith(("models/", "runs/")):
        return None
    return path


def licence_of(model: Path | None) -> dict[str, str]:
    """Keys of a card for the licence of a base model, which holds for what is trained from it.

    Args:
        model: its directory, whose README.md may have a card's head. None means that it is not on this machine.
    """
    with suppress(AttributeError, IndexError, OSError, XpError, yaml.YAMLError):
        if model:
            head = yaml.safe_load(read_text(model / CARD, ExitCode.RUN_DIR).split("---\n")[1])
        else:
            head = {}
        keys = ("license", "license_name", "license_link")
        named = {key: head[key] for key in keys if isinstance(head.get(key), str)}
        if named:
            return named
    return {"license": "other", "license_name": "of-the-base-model"}


def _card(head: Mapping[str, Any], text: str) -> str:
    return f"---\n{yaml.safe_dump(dict(head), sort_keys=False)}---\n\n{text}"


def _estimate(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return "not measured"
    text = f"{estimate['value']:.3f}"
    if estimate["low"] is not None:
        text += f" ({estimate['low']:.3f} to {estimate['high']:.3f})"
    return text


def _below(directory: Path) -> Iterator[Path]:
    return (
        file for file in sorted(directory.rglob("*")) if file.is_file() and not file.is_symlink()
    )


def publish(parts: Mapping[str, Files], to: str) -> list[str]:
    """Writes the parts (`model`, `episodes`) into a new directory, or uploads them to the hub.

    Args:
        parts: part -> its files.
        to: a directory that does not exist, or `hub:ORG/NAME`.

    Returns:
        The place of each part.

    Raises:
        XpError: (CONFIG) `to` is neither; (RUN_DIR) the directory exists; (RUNTIME) the hub refused the upload.
    """
    if to.startswith(HUB):
        return [_upload(name, files, to.removeprefix(HUB)) for name, files in parts.items()]
    target = Path(to)
    if target.exists():
        raise XpError(
            f"{target} exists, and nothing is overwritten; give another directory", ExitCode.RUN_DIR
        )
    for part, files in parts.items():
        for name, content in files.items():
            file = target / part / name
            with resource_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, str):
                    file.write_text(content)
                else:
                    shutil.copyfile(content, file)
    return [str(target / part) for part in parts]


def _upload(part: str, files: Files, hub_id: str) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if not _HUB_ID.fullmatch(hub_id):
        raise XpError(f"--to {HUB}{hub_id}: expected {HUB}ORG/NAME")
    kind, name = ("model", hub_id) if part == "model" else ("dataset", f"{hub_id}{EPISODES}")
    api = HfApi()
    operations = [
        CommitOperationAdd(path, content.encode() if isinstance(content, str) else str(content))
        for path, content in files.items()
    ]
    try:
        # Private: whether the world may see it is its owner's decision, on the hub's page.
        url = api.create_repo(name, repo_type=kind, private=True, exist_ok=True)
        api.create_commit(
            name, operations, commit_message=f"Publish with xp {__version__}", repo_type=kind
        )
    except (HfHubHTTPError, OSError) as error:
        fault = f"the hub refused {kind} {name}: {' '.join(str(error).split())[:300]}"
        raise XpError(f"{fault}; log in with `hf auth login`", ExitCode.RUNTIME) from error
    return str(url)


def listing(parts: Mapping[str, Files]) -> Iterator[str]:
    """Lines that show what would be published."""
    for part, files in parts.items():
        size = sum(
            len(file.encode()) if isinstance(file, str) else file.stat().st_size
            for file in files.values()
        )
        yield f"{part}: {counted(len(files), 'file')}, {size / 1e6:.1f} MB"
        yield from (f"  {name}" for name in sorted(files))
