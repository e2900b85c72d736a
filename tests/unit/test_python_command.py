"""The command line that a Python script gives to Slime's `execute_train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.contrib.native_diff.scripts import read_script
from xp.errors import XpError

SCRIPT = """
import os
import slime.utils.misc as U
from slime.utils.external_utils.command_utils import execute_train

NUM_GPUS = int(os.environ.get("NUM_GPUS", "8"))
ROOT = "/data"
FILE = os.path.join(ROOT, "train.parquet")


def execute():
    wandb_args = "--use-wandb " if (key := os.environ.get("KEY")) else ""
    rollout_args = (
        f"--prompt-data {FILE} "
        '--multimodal-keys \\'{"image": "images"}\\' '
        "--rollout-shuffle "
    )
    sglang_args = f"--gpus {NUM_GPUS} " + f"--sizes {' '.join(map(str, range(NUM_GPUS)))} "
    train_args = f"{rollout_args} {sglang_args} {wandb_args} "
    execute_train(train_args=train_args, megatron_model_type="tiny", num_gpus_per_node=NUM_GPUS)
"""


def test_the_texts_of_a_command_line_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "scripts/models").mkdir(parents=True)
    (tmp_path / "scripts/models/tiny.sh").write_text("MODEL_ARGS=(\n   --num-layers 4\n)\n")
    (tmp_path / "examples").mkdir()
    file = tmp_path / "examples/run.py"
    file.write_text(SCRIPT)
    assert read_script(file).keys == {
        "--num-layers": ["4"],
        "--prompt-data": ["/data/train.parquet"],
        "--multimodal-keys": ['{"image": "images"}'],
        "--rollout-shuffle": [],
        "--gpus": ["8"],
        "--sizes": ["$computed"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "execute_train(train_args=a)\na = a + a\n",
        "execute_train(train_args=a)\na = b\nb = a\n",
        "execute_train()\n",
        "class A:\n    run = execute_train(train_args=f'{self.a} --lr {1 / 2}')\n",
    ],
)
def test_a_text_that_only_the_run_has_is_left_open(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.py"
    file.write_text(text)
    try:
        assert {*read_script(file).keys} <= {"--lr"}
    except XpError as error:
        pytest.fail(str(error))
