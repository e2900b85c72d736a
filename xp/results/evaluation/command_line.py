"""Parses the command line of `xp eval`: models, environments, overrides and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.composition import parse_assignments
from xp.errors import XpError
from xp.results.evaluation.settings import Settings, defaults, settings

ENDPOINT: Final = "endpoint"


@dataclass(frozen=True)
class EvalRequest:
    """A parsed command line."""

    models: tuple[str, ...]
    """Values of `model=`: an option, a directory, a hub's id, or `endpoint`."""
    runs: tuple[str, ...]
    """Values of `run=`."""
    envs: tuple[str, ...]
    """Values of `env=`. Empty means the default, or each run's own."""
    overrides: tuple[str, ...]
    """Overrides of the spec."""
    settings: Settings
    endpoint_names: tuple[str, ...]
    config_dirs: tuple[Path, ...]


def read(words: Sequence[str], config_dirs: Sequence[Path] = ()) -> EvalRequest:
    """Parses the words; raises XpError for an unknown word, or without a model."""
    picked: dict[str, list[str]] = {"model": [], "run": [], "env": []}
    rest: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in picked and value:
            picked[name] += [part for part in value.split(",") if part]
        elif equals:
            rest.append(word)
        else:
            raise XpError(f"{word}: not understood; see python -m xp eval --help")
    is_endpoint = ENDPOINT in picked["model"]
    values, overrides = _eval_settings(rest, is_endpoint)
    parsed = settings(values)
    names = tuple(part for part in (parsed.model.name or "").split(",") if part)
    if is_endpoint and (parsed.model.url is None or not names):
        raise XpError(
            "model=endpoint needs model.url=URL and model.name=NAME, as in\n"
            "  python -m xp eval env=gsm8k model=endpoint model.url=http://127.0.0.1:8000/v1 model.name=my-model"
        )
    if not picked["model"] and not picked["run"]:
        raise XpError("which model? give model=... or run=...; see python -m xp eval --help")
    trainer_words = [word for word in overrides if word.startswith("backend.engine.name=")]
    if trainer_words:
        engines = "transformers, vllm or sglang"
        raise XpError(
            f"{trainer_words[0]}: the engine of a trainer; an evaluation has eval.engine={engines}"
        )
    return EvalRequest(
        models=tuple(dict.fromkeys(picked["model"])),
        runs=tuple(dict.fromkeys(picked["run"])),
        envs=tuple(dict.fromkeys(picked["env"])),
        overrides=tuple(overrides),
        settings=parsed,
        endpoint_names=names if is_endpoint else (),
        config_dirs=tuple(config_dirs),
    )


def _eval_settings(words: Sequence[str], is_endpoint: bool) -> tuple[dict[str, Any], list[str]]:
    """Path -> value for the settings of eval.yaml, and the words that belong to the spec."""
    paths = {f"{section}.{key}" for section, keys in defaults().items() for key in keys}
    if not is_endpoint:
        paths = {path for path in paths if not path.startswith("model.")}
    chosen = [word for word in words if word.partition("=")[0] in paths]
    texts = ("model.url", "model.name", "model.key", "eval.python")
    # A URL or a name is not parsed as a value of an override; it stays as typed.
    typed = {
        word.partition("=")[0]: word.partition("=")[2] for word in chosen if word.startswith(texts)
    }
    parsed = parse_assignments([word for word in chosen if word.partition("=")[0] not in typed])
    left = [word for word in words if word not in chosen]
    if not is_endpoint:
        endpoint_words = [word for word in left if word.startswith(("model.url=", "model.key="))]
        if endpoint_words:
            raise XpError(
                f"{endpoint_words[0].partition('=')[0]} belongs to model=endpoint: add it"
            )
    return {**parsed, **typed}, left
