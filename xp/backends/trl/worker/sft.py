"""Fine-tunes the model on episodes with TRL's SFTTrainer: `python -m xp.backends.trl.worker.sft <config.json>`.

With `<accelerate.yaml>` as a second argument it starts itself on several processes.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.config import TRLSftConfig
from xp.backends.trl.worker.launch import launch_processes
from xp.backends.trl.worker.policy import publish_model, trained_model
from xp.backends.trl.worker.process import Ranks, join_group, leave_group, quiet_rank, quiet_trainer, stay_here
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.reading import config_of
from xp.tasks.load import load_tasks, within_limit
from xp.worker.demonstrations import PHASE, Example, chosen, of_file, play, recorded, rendered, solvers_of, summary
from xp.worker.learning_rate import disable_dropout, make_scheduler
from xp.worker.program import run_stage
from xp.worker.tasks import policy_chat

HELD_OUT_LOSS = "sft/held_out_loss"
LABEL_OF_OTHERS = -100
"""Label of a token that has no loss, by torch's cross_entropy."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path, *accelerate = map(Path, argv)
    stay_here()
    if accelerate:
        launch_processes(str(accelerate[0]), "xp.backends.trl.worker.sft", str(path))
        return
    config = config_of(path, TRLSftConfig.from_json)
    ranks = Ranks()
    if not ranks.is_main:
        quiet_rank()
    quiet_trainer(config.common.num_threads)

    from transformers import AutoTokenizer, set_seed

    set_seed(config.common.sampling.seed)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    chat = policy_chat(config.common, config.model, path.parent, tokenizer)
    join_group(ranks, use_cpu=config.arguments["use_cpu"], timeout_s=config.arguments["ddp_timeout"])
    learnt, held_out = _examples(config, path.parent, chat, ranks)
    train(config, tokenizer, learnt, held_out, ranks)
    leave_group(ranks)


def _examples(config: TRLSftConfig, here: Path, chat: ChatTokens, ranks: Ranks) -> tuple[list[Example], list[Example]]:
    """The episodes as tokens, to learn from and held out; raises XpError if none is left."""
    common, counts = config.common, Counter[str]()
    files = [Path(file) for file in config.files]
    excluded = (
        frozenset(row.task_id for row in load_tasks(Path(common.tasks), here, "held_out"))
        if config.is_held_out
        else frozenset()
    )
    with EnvironmentMixture.from_file(here / "episode.json", os.environ) as mix:
        if config.solvers:
            files = [here / "trajectories" / "solve.jsonl"]
            if ranks.is_main:
                _solve(config, here, chat, mix, files[0])
            ranks.wait()
        read = list(of_file(files[0]) if config.is_messages else recorded(files, counts))
        num_episodes = len(read) + sum(counts.values())
        demonstrations = chosen(read, config.rule, excluded, counts)
        learnt, held_out = rendered(demonstrations, config.rule, chat, mix.dialect, common.sampling, counts)
    line = summary(learnt, held_out, counts)
    print(line, flush=True)
    if config.solvers and (void := counts["void"]) > common.max_void_fraction * num_episodes:
        raise XpError(
            f"{void} of the script's {num_episodes} episodes are void, more than training.max_void_fraction"
            f"={common.max_void_fraction:g}: the environment is failing",
            ExitCode.UNHEALTHY,
        )
    if not learnt:
        raise XpError(f"sft.data: no episode is left to learn from ({line})", ExitCode.TASKS)
    return learnt, held_out


def _solve(config: TRLSftConfig, here: Path, chat: ChatTokens, mix: EnvironmentMixture, file: Path) -> None:
    """Plays the training tasks by the environments' scripts."""
    tasks = Path(config.common.tasks)
    rows = within_limit(tasks, load_tasks(tasks, here, "train"), chat, config.common.sampling.max_prompt_tokens)
    rows = random.Random(config.rule.seed).sample(rows, min(len(rows), config.rule.num_episodes or len(rows)))
    began = time.monotonic()
    play(solvers_of(config.solvers), rows, mix, file, config.common.run)
    print(f"{len(rows)} tasks played by their script in {time.monotonic() - began:.1f} s", flush=True)


def train(
    config: TRLSftConfig, tokenizer: Any, learnt: Sequence[Example], held_out: Sequence[Example], ranks: Ranks
) -> None:
    """Updates the model on the episodes and publishes it."""
    from xp.backends.trl.worker.checkpoints import latest_checkpoint

    metrics = MetricsFile(Path(config.common.metrics), PHASE, config.common.attempt) if ranks.is_main else None
    updates = Updates(metrics)
    trainer = make_trainer(config, tokenizer, learnt, held_out, ranks, updates)
    checkpoint = latest_checkpoint(Path(config.arguments["output_dir"]))
    if checkpoint is not None:
        print(f"going on from {checkpoint}", flush=True)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if held_out:
        updates.last[HELD_OUT_LOSS] = float(trainer.evaluate()["eval_loss"])
        after = updates.last[HELD_OUT_LOSS]
        print(f"sft: loss of the held-out episodes {updates.start_loss:.4f} before, {after:.4f} after", flush=True)
    if metrics is not None:
        metrics.write(trainer.state.global_step, updates.last)
    model = trained_model(trainer)
    if ranks.is_main:
        publish_model(model, tokenizer, Path(config.target))


class Updates:
    """Metrics of each update; that of the last one is written with the loss after it.

    Args:
        metrics: the run's file; None in a process that does not write it.
    """

    def __init__(self, metrics: MetricsFile | None) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self.last: dict[str, float] = {}
        self.start_loss = math.nan
        """Loss of the held-out episodes before the first update of this process."""

    def begin(self, update: int, held_out_loss: float) -> None:
        """Takes the held-out loss before an update; that before the first one of all is a line of its own."""
        self.start_loss, self._began = held_out_loss, time.monotonic()
        if update == 0 and self._metrics is not None:
            self._metrics.write(0, {HELD_OUT_LOSS: held_out_loss})

    def end(self, update: int, logs: Mapping[str, float], *, is_last: bool) -> None:
        """Takes an update's log; raises XpError(DIVERGED) if its loss or gradient is not finite."""
        loss, norm = logs["loss"], logs["grad_norm"]
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise XpError(
                f"sft: loss {loss:g} and gradient norm {norm:g} at update {update}; lower sft.learning_rate",
                ExitCode.DIVERGED,
            )
        now = time.monotonic()
        values = {name: logs[native] for native, name in NATIVE.items()} | {"time/update_s": now - self._began}
        self._began = now
        if is_last:
            self.last = values
        elif self._metrics is not None:
            self._metrics.write(update, values)


def make_trainer(
    config: TRLSftConfig,
    tokenizer: Any,
    learnt: Sequence[Example],
    held_out: Sequence[Example],
    ranks: Ranks,
    updates: Updates,
) -> Any:
    """The SFTTrainer of this process."""
    from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from xp.backends.trl.worker.checkpoints import Seal
    from xp.backends.trl.worker.train import loaded_dtype, peft_config, shard_on_cpu

    class Trainer(SFTTrainer):  # type: ignore[misc]
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """xp's schedules, whose warm-up begins above 0."""
            self.lr_scheduler = make_scheduler(
                config.lr_schedule, optimizer or self.optimizer, config.warmup_updates, num_training_steps
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

    class Listener(TrainerCallback):  # type: ignore[misc]
        has_begun = False

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any) -> None:  # noqa: ARG002
            if not self.has_begun:  # the other evaluation is after the last update
                updates.begin(state.global_step, metrics["eval_loss"])
            self.has_begun = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:  # noqa: ARG002
            if "loss" in logs:
                updates.end(state.global_step, logs, is_last=state.global_step == state.max_steps)

    # Within the training: under FSDP2 a model cannot be evaluated before it has an optimizer.
    args = SFTConfig(**config.arguments, eval_on_start=bool(held_out))
    shard_on_cpu(args.distributed_state, os.environ)
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=loaded_dtype(config))
    disable_dropout(model)
    trainer = Trainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=_dataset(learnt),
        eval_dataset=_dataset(held_out) if held_out else None,
        callbacks=[Listener(), Seal(ranks)],
        peft_config=None if config.lora is None else peft_config(config.lora),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


NATIVE: Mapping[str, str] = {
    "loss": "training/loss",
    "grad_norm": "training/grad_norm",
    "learning_rate": "training/learning_rate",
}
"""TRL's name -> xp's."""


def _dataset(examples: Sequence[Example]) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"input_ids": one.ids, "labels": labels_of(one)} for one in examples])


def labels_of(example: Example) -> list[int]:
    """The tokens, and -100 for those that are not learnt."""
    return [token if is_learnt else LABEL_OF_OTHERS for token, is_learnt in zip(example.ids, example.mask, strict=True)]


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
