"""`plan --native` and `plan --native-diff FILE`: the native keys of a plan, and those of a script beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import rows
from xp.__main__ import main
from xp.contrib.native_diff.scripts import read_script
from xp.errors import ExitCode, XpError

NESTED = """
#!/bin/bash
set -x   # trainer.a=1 is a comment
: "${DATA_DIR:="$HOME/data"}"
MORE=${MORE:-"generator.max_turns=4"}
STEPS=3
LONG=$((1024 * (STEPS + 1)))
if [ "$STEPS" = "2" ]; then
  LR=1e-3
elif [ -n "$NOWHERE" ] || [ "$STEPS" -ge 3 ]; then
  LR='1e-5'
else
  LR=0
fi
if [ "$STEPS" != "3" ]; then MORE=; fi
if command -v nvidia-smi; then NODES=1; else NODES=2; fi
ray start --head --num-gpus 8
bash "$(dirname "$0")/inner.sh" \\
  trainer.run_name="a_${STEPS}" trainer.max_prompt_length=$LONG $MORE \\
  +trainer.policy.optimizer_config.lr=$LR data.train_data="['$DATA_DIR/a b.parquet']" trainer.nodes=$NODES
"""
INNER = 'uv run --with x -m skyrl.train.entrypoints.main_base trainer.run_name=inner trainer.strategy="fsdp" "$@" | tee log'
SLIME = """
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
WIDTH=10 source "${SCRIPT_DIR}/models/small.sh"
CKPT_ARGS=(
   --hf-checkpoint /root/m   # comment
   # --load /root/old
   --eval-prompt-data aime $BASE/aime.jsonl
)
CKPT_ARGS+=(--colocate)
HERE="$(cd /a && pwd)/out"
python3 prepare.py --short
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"a": "b"}' -- python3 train.py \\
   --actor-num-nodes 1 --save ${HERE} \\
   ${MODEL_ARGS[@]} "${CKPT_ARGS[@]}" ${OTHER_ARGS[@]}
pkill -9 python --signal 9
"""
MODEL = 'MODEL_ARGS=(--hidden-size "${WIDTH:-5}" --swiglu)'
PYTHON = '''
"""
accelerate launch --config_file x.yaml examples/{name} --beta 0.1 --use_vllm
python other.py --a 1 --b 2 --c 3
"""
args = GRPOConfig(learning_rate=1e-5, model_init_kwargs={{"dtype": torch.bfloat16}}, max_steps=steps)
GRPOTrainer(model="org/m", args=args, reward_funcs=[length], train_dataset=data)
'''
FILES = {"inner.sh": INNER, "models/small.sh": MODEL}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def read(place: Path, name: str, text: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
    (place / name).write_text(text)
    return dict(read_script(place / name, known.__contains__).keys)


def test_a_script_of_words_is_read_as_bash_reads_it(place: Path) -> None:
    assert read(place, "run.sh", NESTED) == {
        "trainer.run_name": "a_3",
        "trainer.strategy": "fsdp",
        "trainer.max_prompt_length": "4096",
        "generator.max_turns": "4",
        "trainer.policy.optimizer_config.lr": "1e-5",
        "data.train_data": "['$HOME/data/a b.parquet']",
        "trainer.nodes": "2",
    }


def test_a_script_of_flags_has_the_arrays_of_its_files(place: Path) -> None:
    assert read(place, "run.sh", SLIME) == {
        "--actor-num-nodes": ["1"],
        "--save": ["$(cd /a && pwd)/out"],
        "--hidden-size": ["10"],
        "--swiglu": [],
        "--hf-checkpoint": ["/root/m"],
        "--eval-prompt-data": ["aime", "$BASE/aime.jsonl"],
        "--colocate": [],
        "${OTHER_ARGS[@]}": [],
    }
    assert read_script(place / "models/small.sh").keys == {"--hidden-size": ["5"], "--swiglu": []}


def test_python_yaml_and_lists_of_arguments(place: Path) -> None:
    assert read(place, "a.py", PYTHON.format(name="a.py")) == {
        "--beta": ["0.1"],
        "--use_vllm": [],
        "learning_rate": "1e-05",
        "model_init_kwargs": "{'dtype': torch.bfloat16}",
        "max_steps": "steps",
        "model": "org/m",
        "reward_funcs": "[length]",
        "train_dataset": "data",
    }
    text = "learning_rate: 2.0e-5\nreport_to: [wandb]\ntrainer: {algorithm: {kl: 1}}\nkwargs: {a: {b: 1}}\n"
    assert read(place, "a.yaml", text, ("kwargs",)) == {
        "learning_rate": 2.0e-5,
        "report_to": ["wandb"],
        "trainer.algorithm.kl": 1,
        "kwargs": {"a": {"b": 1}},
    }
    assert read(place, "a.txt", "--lr 1e-6 --name=x\n--fp8") == {
        "--lr": ["1e-6"],
        "--name": ["x"],
        "--fp8": [],
    }


REDIRECTED = """
N="${N:-${M:-8}}"
python3 train.py --actor-num-nodes "${N}" --colocate 2>&1 | tee log
"""
ARGPARSE = """
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--num-steps", "-n", default=7)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--beta")
lr = 1e-5
cfg = dict(num_generations=4)
more = {"beta": 0.5}
name = "Qwen/Qwen3-0.6B"
args = GRPOConfig(learning_rate=lr, max_steps=args.num_steps, fp16=args.fp16, seed=args.seed, **cfg, **more, **other)
lora = LoraConfig(r=8, lora_alpha=16, init_lora_weights="pissa")
GRPOTrainer(model=name, args=args, peft_config=lora, reward_funcs="x",
            quantization_config=BitsAndBytesConfig(load_in_4bit=True))
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--b 1 2>log --c 2 >>out 2>/dev/null <in", {"--b": ["1"], "--c": ["2"]}),
        ("--b 1 2 &>log", {"--b": ["1", "2"]}),
        ('--b "1"\\\n --c "a b"\\\n  --d', {"--b": ["1"], "--c": ["a b"], "--d": []}),
        ("--b ${A:-${B-${C:=3}}}", {"--b": ["3"]}),
        ("--b 1\nbash run.sh --b 1\nsource run.sh", {"--b": ["1"]}),
    ],
)
def test_words_of_bash_that_are_no_values(
    place: Path, words: str, expected: dict[str, list[str]]
) -> None:
    assert read(place, "run.sh", f"python3 a.py {words}") == expected


def test_classes_variables_and_defaults_of_a_python_file(place: Path) -> None:
    assert read(place, "run.sh", REDIRECTED) == {"--actor-num-nodes": ["8"], "--colocate": []}
    (place / "a.py").write_text(ARGPARSE)
    script = read_script(place / "a.py")
    assert script.keys == {
        "learning_rate": "1e-05",
        "max_steps": "7",
        "fp16": "False",
        "seed": "args.seed",
        "num_generations": "4",
        "beta": "0.5",
        "lora_r": "8",
        "lora_alpha": "16",
        "peft_config.init_lora_weights": "pissa",
        "model": "Qwen/Qwen3-0.6B",
        "reward_funcs": "x",
        "load_in_4bit": "True",
    }
    assert script.unread == (
        "seed=args.seed is computed when the script runs",
        "GRPOConfig(**other) has keys of its own",
    )


def test_toml_notebooks_and_files_of_several_commands(place: Path) -> None:
    text = "max_steps = 20\n[trainer.optim]\nlr = 3e-6\n[[env]]\nid = 'a'\n"
    assert read(place, "a.toml", text) == {
        "max_steps": 20,
        "trainer.optim.lr": 3e-6,
        "env": [{"id": "a"}],
    }
    cells = [
        {"cell_type": "code", "source": ["%pip install x\n", "!trl grpo --beta 0.1 --lora_r 8\n"]},
        {"cell_type": "markdown", "source": ["GRPOConfig(seed=1)"]},
        {"cell_type": "code", "source": "GRPOConfig(max_steps=3)"},
    ]
    assert read(place, "a.ipynb", json.dumps({"cells": cells})) == {
        "max_steps": "3",
        "--beta": ["0.1"],
        "--lora_r": ["8"],
    }
    (place / "a.sh").write_text("python3 prepare.py --a 1\npython3 train.py --b 1 --c 2\n")
    script = read_script(place / "a.sh")
    assert script.keys == {"--b": ["1"], "--c": ["2"]}
    (sentence,) = script.unread
    assert "train.py is compared, and not prepare.py (1 key)" in sentence
    (place / "a.yaml").write_text("{")
    with pytest.raises(XpError, match=r"a\.yaml"):
        read_script(place / "a.yaml")


SKYRL = ["env=gsm8k", "model=qwen2.5-1.5b-instruct", "hardware=a100x4", "backend=skyrl"]
SLIME_RUN = ["env=gsm8k", "model=qwen3-4b", "hardware=h100x8", "backend=slime"]
TRL = ["env=gsm8k", "model=qwen2.5-1.5b-instruct", "hardware=a100x1", "backend=trl"]
OTHERWISE = {"trainer.epochs", "trainer.max_prompt_length"}


def table(
    capsys: pytest.CaptureFixture[str], words: list[str], file: Path
) -> dict[str, tuple[str, str]]:
    """Key -> result and xp's field or sentence."""
    assert main(["plan", *words, "--json", "--native-diff", str(file)]) == ExitCode.OK
    return {
        row["key"]: (row["result"], row["in_xp"]) for row in json.loads(capsys.readouterr().out)
    }


@pytest.mark.parametrize("words", [SKYRL, SLIME_RUN, TRL])
def test_the_native_keys_of_a_plan_are_equal_to_themselves(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["plan", *words, "--native"]) == ExitCode.OK
    file = place / ("a.yaml" if words is TRL else "a.sh")
    file.write_text(capsys.readouterr().out.replace("\n", "\n" if words is TRL else " "))
    rows = table(capsys, words, file)
    # SkyRL counts epochs and prompts otherwise than xp, whose fields have a script's values.
    assert {
        key for key, (result, _) in rows.items() if result not in ("equal", "taken by xp")
    } <= OTHERWISE


@pytest.mark.parametrize(("words", "script", "lines"), rows("native_diff"))
def test_what_became_of_each_key(
    place: Path, capsys: pytest.CaptureFixture[str], words: str, script: str, lines: list[str]
) -> None:
    (place / "a.sh").write_text(script)
    found = table(capsys, words.split(), place / "a.sh")
    expected = {key: (result, text) for key, result, text in (line.split(" | ") for line in lines)}
    assert {
        key: (found[key][0], found[key][1][: len(text)]) for key, (_, text) in expected.items()
    } == expected
    has_defaults = any(result == "not in the script" for result, _ in found.values())
    assert has_defaults is not script.startswith("python"), (
        "the defaults of another program are not the trainer's"
    )


def test_the_table_ends_with_the_counts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.sh").write_text("--lr 1e-6 --weight-decay 7")
    assert main(["plan", *SLIME_RUN, "--native-diff", str(place / "a.sh")]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "--lr\t1e-6\t1e-06\tequal\ttraining.learning_rate=1e-06"
    assert lines[-1].startswith("1 equal, 1 different, 0 taken by xp, 0 left over, ")


def test_a_comparison_with_an_unset_number_is_false_and_options_of_python_are_skipped(
    place: Path,
) -> None:
    script = """
if [ "$UNSET" -ge 3 ]; then LR=1; else LR=2; fi
python --hook=a.py --fast train.py --lr $LR
"""
    assert read(place, "run.sh", script) == {"--lr": ["2"]}
