"""One rank of training with a colocated engine, for tests/trainers/test_trl_vllm.py: the first writes what all saw.

accelerate launch ... -m tests.trainers.trl_colocated CONFIG RESULT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.fake_session import RULES
from tests.support.scripts import FakeMix
from tests.support.sections import replace
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks, TrainingProcess, leave_group, quiet_trainer
from xp.backends.trl.worker.rollout import Rollouts
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.spec.env import OnNoToolCall


def main(path: str, result: str) -> None:
    """The untrained policy is nudged: the first rank's episodes have one turn, the second's three."""
    config = TRLTrainConfig.from_json(Path(path).read_text())
    ranks = Ranks()
    quiet_trainer(1)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.reference)
    rules = replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE, max_turns=1 + 2 * ranks.number)
    mix: Any = FakeMix(rules)
    log = TRLStepLog(config, None)
    with Recorder(
        Path(config.stage_dir) / f"rank_{ranks.number}.jsonl", mix, None, os.environ
    ) as recorder:
        process = TrainingProcess(
            config,
            ChatTokens(tokenizer),
            mix,
            log,
            recorder,
            ranks,
        )
        rollouts = Rollouts(process, ROWS)
        trainer = make_trainer(
            config,
            os.environ,
            ChatTokens(tokenizer),
            ROWS,
            log,
            rollouts,
        )
        trainer.train()
    import vllm

    calls = ranks.gather([call for engine in vllm.LLM.made for call in engine.log])  # type: ignore[attr-defined]
    if ranks.is_main:
        lines = [line for line in trainer.state.log_history if "loss" in line]
        given = {name: str(value) for name, value in vllm.LLM.made[0].given.items()}  # type: ignore[attr-defined]
        Path(result).write_text(json.dumps({"lines": lines, "calls": calls, "given": given}))
    leave_group(ranks)


if __name__ == "__main__":
    main(*sys.argv[1:])
