"""Fine-tunes the model on episodes with TRL's SFTTrainer: `python -m xp.backends.trl.worker.sft <config.json>`.

With `<accelerate.yaml>` as a second argument it starts itself on several processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.config import TRLSftConfig
from xp.backends.trl.worker.launch import launch_processes
from xp.backends.trl.worker.lora import start_policy
from xp.backends.trl.worker.policy import publish_policy
from xp.backends.trl.worker.process import (
    Ranks,
    bind_on_one_machine,
    join_group,
    leave_group,
    quiet_rank,
    quiet_trainer,
)
from xp.episode.picture_reader import PictureReader
from xp.lib.load import import_large
from xp.lib.models.files import local_directory
from xp.lib.reading import config_of
from xp.worker.demonstrations import PHASE, Example
from xp.worker.facts import check_weights
from xp.worker.learning_rate import make_scheduler
from xp.worker.network import free_media_inputs
from xp.worker.picture_passes import seeing_nothing
from xp.worker.program import run_stage
from xp.worker.sft import PICTURES, SftProgram, Updates, tokens_of_update

LABEL_OF_OTHERS = -100
"""Label of a token that has no loss, by torch's cross_entropy."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path, *accelerate = map(Path, argv)
    bind_on_one_machine()
    if accelerate:
        launch_processes(str(accelerate[0]), "xp.backends.trl.worker.sft", str(path))
        return
    config = config_of(path, TRLSftConfig.from_json)
    ranks = Ranks()
    if not ranks.is_main:
        quiet_rank()
    import_large("datasets", "trl.trainer.sft_trainer")
    quiet_trainer(config.threads_per_process)

    from transformers import AutoTokenizer, set_seed

    set_seed(config.spec.seed)
    check_weights(local_directory(config.model, Path()))
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    join_group(
        ranks, use_cpu=config.arguments["use_cpu"], timeout_s=config.arguments["ddp_timeout"]
    )
    program = SftProgram.begin(
        config, path.parent, config.model, tokenizer, is_main=ranks.is_main, wait=ranks.wait
    )
    train(program, ranks)
    leave_group(ranks)
    if ranks.is_main:
        program.check()


def train(program: SftProgram[TRLSftConfig], ranks: Ranks) -> None:
    """Updates the model on the episodes and publishes it."""
    from xp.backends.trl.worker.checkpoints import latest_checkpoint

    config = program.config
    metrics = config.metrics_file(PHASE) if ranks.is_main else None
    tokens = tokens_of_update(program.trained, config.spec.sft.batch_size)
    updates = Updates(metrics, program.num_updates, tokens)
    trainer = make_trainer(program, ranks, updates)
    checkpoint = latest_checkpoint(Path(config.arguments["output_dir"]))
    if checkpoint is not None:
        print(f"continuing from {checkpoint}", flush=True)
    updates.start()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    held_out_loss = None
    if program.held_out:
        held_out_loss = float(trainer.evaluate()["eval_loss"])
    updates.finish(trainer.state.global_step, held_out_loss)
    target = Path(config.target)
    publish_policy(trainer, program.chat, target, config.spec.model, ranks, config.model)


def _trainer_class(program: SftProgram[TRLSftConfig]) -> Any:
    """TRL's SFTTrainer with xp's schedules, whole checkpoints, and pictures on all processes together."""
    from trl import SFTTrainer

    from xp.backends.trl.worker.resumed_weights import WholeCheckpoints

    config = program.config
    chat = program.chat
    held_out = program.held_out
    sft = config.spec.sft

    class OwnSFTTrainer(WholeCheckpoints, SFTTrainer):  # type: ignore[misc]
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """xp's schedules, whose warm-up begins above 0."""
            optimizer = optimizer or self.optimizer
            least = sft.min_learning_rate
            self.lr_scheduler = make_scheduler(
                sft.lr_schedule, optimizer, sft.warmup_updates, num_training_steps, least
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            """TRL's loss; under FSDP2 all processes gather the vision part's weights together."""
            if chat.pictures is None or not self.is_fsdp_enabled:
                return super().compute_loss(model, inputs, *args, **named)
            is_blank = chat.pictures.form.dims.keys().isdisjoint(inputs)
            with seeing_nothing(
                model,
                chat.pictures.blank,
                trains=config.spec.model.train_vision,
                is_due=lambda: is_blank,
            ):
                return super().compute_loss(model, inputs, *args, **named)

        def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            """TRL's mean over an episode's tokens, weighted so that the mean over episodes is that over all tokens."""
            num_tokens = (inputs["labels"] != LABEL_OF_OTHERS).sum()
            loss, *others = super().prediction_step(model, inputs, *args, **named)
            num_all = sum(sum(example.mask) for example in held_out)
            return loss * num_tokens * len(held_out) / num_all, *others

    return OwnSFTTrainer


def make_trainer(program: SftProgram[TRLSftConfig], ranks: Ranks, updates: Updates) -> Any:
    """The SFTTrainer of this process."""
    from transformers import PrinterCallback, TrainerCallback

    from xp.backends.trl.worker.checkpoints import Seal
    from xp.backends.trl.worker.train import shard_on_cpu

    config = program.config
    chat = program.chat
    held_out = program.held_out

    class Listener(TrainerCallback):  # type: ignore[misc]
        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any
        ) -> None:
            if updates.start_loss is None:  # the other evaluation is after the last update
                updates.begin(state.global_step, metrics["eval_loss"])

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any
        ) -> None:
            if "loss" in logs:
                values = logs["loss"], logs["grad_norm"], logs["learning_rate"]
                updates.end(
                    state.global_step, *values, is_last=state.global_step == state.max_steps
                )

    args = _arguments(config, is_evaluated=bool(held_out))
    shard_on_cpu(args.distributed_state, os.environ)
    model, adapters = start_policy(config.model, config.spec.model)
    trainer = _trainer_class(program)(
        model=model,
        args=args,
        processing_class=chat.tokenizer,
        train_dataset=_dataset(program.trained),
        eval_dataset=_dataset(held_out) if held_out else None,
        callbacks=[Listener(), Seal(ranks, chat.end_ids, chat.template)],
        peft_config=adapters,
    )
    trainer.remove_callback(PrinterCallback)
    free_media_inputs(trainer.model)
    if chat.pictures is not None:
        trainer.data_collator = TRLPictureCollator(trainer.data_collator, chat.pictures)
    return trainer


def _arguments(config: TRLSftConfig, *, is_evaluated: bool) -> Any:
    """TRL's SFTConfig.

    Args:
        config: of the stage.
        is_evaluated: whether dialogues are held out.
    """
    from trl import SFTConfig

    # Within the training: under FSDP2 a model cannot be evaluated before it has an optimizer.
    args = SFTConfig(**config.arguments, eval_on_start=is_evaluated)
    if config.spec.model.images is not None:
        args.remove_unused_columns = False  # The collator reads the pictures' column.
    if config.spec.model.train_vision:
        args.ddp_find_unused_parameters = True  # A dialogue may have no picture.
    return args


class TRLPictureCollator:
    """TRL's batch of tokens, and the pixels of its pictures.

    TRL's own collator of pictures would render the messages again.

    Args:
        collate: TRL's collator of tokens.
        pictures: the pictures as the policy reads them.
    """

    def __init__(
        self, collate: Callable[[list[dict[str, Any]]], dict[str, Any]], pictures: PictureReader
    ) -> None:
        self._collate = collate
        self._pictures = pictures

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._collate(examples)
        digests = [digest for example in examples for digest in example[PICTURES]]
        if digests:
            batch |= self._pictures.inputs(batch["input_ids"], digests)
        return batch


def _dataset(examples: Sequence[Example]) -> Any:
    from datasets import Dataset, Features, List, Value

    rows = [
        {
            "input_ids": example.ids,
            "labels": [
                token if is_trained else LABEL_OF_OTHERS
                for token, is_trained in zip(example.ids, example.mask, strict=True)
            ],
            PICTURES: example.pictures,
        }
        for example in examples
    ]
    ids = List(Value("int64"))
    features = Features({"input_ids": ids, "labels": ids, PICTURES: List(Value("string"))})
    return Dataset.from_list(rows, features=features)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
