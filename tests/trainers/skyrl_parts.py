"""SkyRL's inputs and outputs of xp's generator over fake sessions, with an engine that says what a script says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import jobs
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.process import prepare_process
from xp.backends.skyrl.worker.train import skyrl_row
from xp.composition import compose
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow
from xp.worker.skyrl_names import ENV_CLASS

prepare_process()

REHEARSAL = ("backend=skyrl", "hardware=cpu")
AHEAD = (
    *("algorithm.importance_correction=token_truncate", "backend.engine.placement=separate"),
    *(
        "backend.engine.accelerators=1",
        "hardware.accelerators_per_node=2",
        "backend.parallel.offload_optimizer=false",
    ),
)
"""Words of a training beside sampling."""


def train_config(*overrides: str) -> SkyRLTrainStageConfig:
    """As the control plane renders it for the rehearsal."""
    return jobs.train_config(SkyRLTrainStageConfig, compose([*REHEARSAL, *overrides]))


def native(config: SkyRLTrainStageConfig, root: Path = Path("/outputs")) -> Any:
    """SkyRLTrainConfig, parsed and checked by SkyRL."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    from xp.backends.skyrl.worker.advantages import register_estimator

    register_estimator()
    cfg = SkyRLTrainConfig.from_cli_overrides(
        config.native(config.start_model, root, config.reference)
    )
    validate_cfg(cfg)
    return cfg


def clip_of(algorithm: Any) -> tuple[float, float]:
    """Bounds of the ratio below and above 1."""
    if algorithm.policy_loss_type == "cispo":
        return algorithm.cispo.cispo_eps_clip_low, algorithm.cispo.cispo_eps_clip_high
    return algorithm.eps_clip_low, algorithm.eps_clip_high


class ScriptedClient:
    """Says a script's turns in every session, each with the token that ends it, or up to a text that does.

    Args:
        texts: one a turn.
        faults: session -> what its first request raises.
    """

    model_name = "scripted"

    def __init__(self, texts: Sequence[str], faults: Mapping[str, Exception] | None = None) -> None:
        self._texts = texts
        self._faults = faults or {}
        self._turns: Counter[str] = Counter()
        self.asked: list[dict[str, Any]] = []
        """Prompt ids and sampling parameters of each request."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        (session,) = input_batch["session_ids"]
        (prompt,) = input_batch["prompt_token_ids"]
        self.asked.append({"ids": list(prompt), **input_batch["sampling_params"]})
        await asyncio.sleep(0)
        if session in self._faults:
            raise self._faults[session]
        tokenizer, _ = tokenizer_and_model()
        text = self._texts[self._turns[session]]
        self._turns[session] += 1
        parameters = input_batch["sampling_params"]
        is_stopped = (
            text.endswith(tuple(parameters.get("stop") or ()))
            and parameters["include_stop_str_in_output"]
        )
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        ids = (ids[:-1] if is_stopped else ids)[: parameters["max_tokens"]]
        return {
            "responses": [tokenizer.decode(ids, skip_special_tokens=True)],
            "response_ids": [ids],
            "stop_reasons": [
                "stop" if is_stopped or ids[-1] == tokenizer.eos_token_id else "length"
            ],
            "response_logprobs": [[-0.5] * len(ids)],
        }

    async def finish_session(self, session_id: str) -> None: ...


@dataclass(frozen=True)
class Batch:
    """What came of a batch."""

    output: dict[str, Any]
    plays: list[Any]
    """xp's record of each episode."""


def generator(client: Any, mix: Any, config: SkyRLTrainStageConfig, **changes: Any) -> Any:
    """XpGenerator as the experiment makes it.

    Args:
        changes: fields of SkyRL's GeneratorConfig.
    """
    from xp.backends.skyrl.worker.generator import XpGenerator

    cfg = native(config)
    cfg.generator = replace(cfg.generator, **changes)
    tokenizer, _ = tokenizer_and_model()
    chat = ChatTokens(tokenizer, config.spec.model, keeps_prompts=config.spec.record_prompts)
    return XpGenerator(cfg, client, chat, mix, config.spec)


def request(
    rows: Sequence[TaskRow], group_size: int, config: SkyRLTrainStageConfig, phase: str = "train"
) -> Any:
    """SkyRL's own input of a generation, from rows of the view."""
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
        get_sampling_params_for_backend,
    )
    from skyrl.train.generators.utils import prepare_generator_input

    views = [skyrl_row(row) for row in rows]
    prompts = [
        {
            "prompt": view.pop("prompt"),
            "env_class": view.pop("env_class"),
            "env_extras": view,
            "uid": str(number),
        }
        for number, view in enumerate(views)
    ]
    sampling = get_sampling_params_for_backend("vllm", native(config).generator.sampling_params)
    wanted, _ = prepare_generator_input(
        prompts,
        group_size,
        sampling,
        ENV_CLASS,
        phase,
        1,
    )
    return wanted


def play(
    client: Any,
    mix: Any,
    rows: Sequence[TaskRow],
    config: SkyRLTrainStageConfig,
    group_size: int = 1,
    phase: str = "train",
    **changes: Any,
) -> Batch:
    """Play a batch as SkyRL's trainer has it played."""
    made = generator(client, mix, config, **changes)
    wanted = request(rows, group_size, config, phase)
    output = asyncio.run(made.generate(wanted))
    return Batch(output, made.played(wanted))
