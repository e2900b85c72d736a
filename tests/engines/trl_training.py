"""One training with TRL's own GRPOTrainer and the real vLLM, for tests/engines/test_trl.py; faults are put in by step.

python -m tests.engines.trl_training CONFIG RESULT {"4": "stale", ...}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.fake_session import RULES
from tests.support.scripts import FakeMix
from tests.support.sections import replace, with_keys
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.worker import colocated
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks, TrainingProcess, leave_group, quiet_trainer
from xp.backends.trl.worker.rollout import Rollouts
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.errors import XpError
from xp.lib import loopback_binding
from xp.spec import DType
from xp.spec.env import OnNoToolCall

LEFT_OUT = "layers.1."
DTYPE = "dtype"
UNTIED = "untied"
"""Faults of a whole run."""


def put_in(trainer: Any, faults: dict[str, str]) -> None:
    """Break the transfer of weights at these steps."""
    generation = trainer.vllm_generation
    sync = generation.sync_weights
    parameters = generation._iter_named_params

    def broken() -> None:
        fault = faults.get(str(trainer.state.global_step + 1))
        if fault == "stale":
            return
        if fault == "layer":
            generation._iter_named_params = lambda: (
                one for one in parameters() if LEFT_OUT not in one[0]
            )
        if fault == "head":
            head_of(generation).cpu_linear = packed_head(head_of(generation))
        sync()
        generation._iter_named_params = parameters

    def mended() -> None:
        if generation.mode == "colocate":
            from torch.nn.functional import linear

            head_of(generation).cpu_linear = linear
        broken()

    generation.sync_weights = mended


def head_of(generation: Any) -> Any:
    model = generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
    return getattr(model, "language_model", model).lm_head


def packed_head(head: Any) -> Any:
    """Packs the head as vLLM itself does on a CPU: later weights are never read."""
    weight = head.weight.detach().clone()
    return lambda x, _, bias: x @ weight.T if bias is None else x @ weight.T + bias


def untie(trainer: Any) -> None:
    """Give the head a weight of its own, equal at first; vLLM, by the model's configuration, never takes it."""
    import torch

    model = trainer.model
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def main(path: str, result: str, faults_text: str) -> None:
    """Episodes of one to three turns; whatever the rewards, the entropy bonus moves the weights."""
    config = TRLTrainConfig.from_json(Path(path).read_text())
    faults = json.loads(faults_text)
    ranks = Ranks()
    loopback_binding.bind_to_loopback()
    quiet_trainer(1)
    from transformers import AutoTokenizer, set_seed

    set_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(config.reference)
    mix: Any = FakeMix(
        replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE, max_turns=1 + 2 * ranks.number)
    )
    metrics = Path(config.stage_dir, "metrics.jsonl")
    log = TRLStepLog(config, MetricsFile(metrics, "train", 1) if ranks.is_main else None)
    if faults == DTYPE:
        config = with_keys(config, model__dtype=DType.BFLOAT16)
    told = ""
    with Recorder(
        Path(config.stage_dir) / f"rank_{ranks.number}.jsonl", mix, None, os.environ
    ) as recorder:
        process = TrainingProcess(config, ChatTokens(tokenizer), mix, log, recorder, ranks)
        rollouts = Rollouts(process, ROWS)
        trainer = make_trainer(config, os.environ, ChatTokens(tokenizer), ROWS, log, rollouts)
        if faults == UNTIED:
            untie(trainer)
        elif faults != DTYPE:
            put_in(trainer, faults)
        try:
            trainer.train()
        except XpError as error:
            told = str(error)
    if ranks.is_main:
        Path(result).write_text(json.dumps({"told": told, "engine": engine_of(trainer)}))
    leave_group(ranks)


def engine_of(trainer: Any) -> dict[str, str]:
    """The engine that ran: version, mode, and module of the colocated engine."""
    import vllm

    return {
        "vllm": vllm.__version__,
        "mode": trainer.vllm_generation.mode,
        "module": colocated.__name__,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
