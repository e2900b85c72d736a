"""Experiments for a GPU that is at hand for minutes: their words, figures and pieces (tools.gpu)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.cases import few
from tools.gpu.__main__ import command_of, figures_of_run, main, planned_mib, run_part
from tools.gpu.build import below, pack, split, wanted
from tools.gpu.entries import ENTRIES, LARGE, SMOLLM2, Part, merged
from tools.gpu.models import SHAPE
from tools.gpu.speculation import counters, figures
from tools.gpu.unpack import main as unpack
from xp.composition import compose
from xp.contrib.contracts.jobs import eventually
from xp.planning.plan import build_plan

SMALL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "max_position_embeddings": 8192,
}
RUNS = [(entry, part) for entry, made in ENTRIES.items() for part in made.parts if part.is_run]


@pytest.mark.parametrize(("entry", "part"), few(RUNS, 5), ids=lambda one: getattr(one, "name", one))
def test_each_run_has_a_plan_for_a_card_and_as_its_rehearsal(
    entry: str, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(Path(__file__).parents[1])
    for place, config in ((LARGE, {"model_type": "qwen2", **SHAPE}), (SMOLLM2, SMALL)):
        Path(place).mkdir(parents=True)
        Path(place, "config.json").write_text(json.dumps(config))
    on_card = compose(merged(part.words, {"hardware": "1xH200"}))
    assert on_card.hardware.accelerator == "h200", entry
    spec = compose([word for word in command_of(part, tmp_path, is_rehearsal=True) if "=" in word])
    assert build_plan(on_card, "r", 1).stages
    assert planned_mib(on_card)
    assert build_plan(spec, "r", 1).stages
    assert spec.training.num_steps == 2
    assert spec.model.name == "tiny"


def test_figures_are_those_of_the_first_step_and_medians_of_the_later_ones(tmp_path: Path) -> None:
    run = tmp_path / "runs/r"
    (run / "attempt_1/train").mkdir(parents=True)
    (run / "attempt_1/train/log.txt").write_text(
        "start: 3.0 s (imports and tasks 1.0, model and engine 2.0)\n"
    )
    lines = [
        {"time/step_s": second, "training/logprob_gap": second / 100}
        for second in (9.0, 1.0, 2.0, 3.0)
    ]
    lines += [{"evaluation/after/reward/avg_raw_reward": 0.5}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert figures_of_run(tmp_path) == {
        "steps": 4,
        "first_step_s": 9.0,
        "step_s": 2.0,
        "first_gap": 0.09,
        "last_gap": 0.03,
        "held_out": 0.5,
        "start": "imports and tasks 1.0, model and engine 2.0",
    }
    assert figures_of_run(tmp_path / "other") == {"steps": 0}


def test_a_part_ends_at_its_time_limit(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert run_part(words, tmp_path / "log", 0.5) == 124
    assert run_part(words, tmp_path / "log", 0) == 124


def test_no_process_of_a_part_outlives_a_killed_tool(tmp_path: Path) -> None:
    id_of_part = tmp_path / "pid"
    lasting = (
        f"import os, time; open({str(id_of_part)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    words = [sys.executable, "-c", lasting]
    program = f"from pathlib import Path; from tools.gpu.__main__ import run_part; run_part({words}, Path('log'), 600)"
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    tool = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environ)
    eventually(lambda: id_of_part.exists() and id_of_part.read_text())
    tool.kill()
    tool.wait()
    eventually(lambda: not psutil.pid_exists(int(id_of_part.read_text())))


def test_acceptance_is_of_all_engines_together() -> None:
    text = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 8.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 25.0
"""
    assert figures(counters(text), 5.0) == {
        "tokens_per_s": 5.0,
        "acceptance": 0.5,
        "tokens_per_pass": 2.5,
    }
    assert figures(counters(text.replace("spec", "other")), 5.0) == {"tokens_per_s": 5.0}


def test_the_table_has_what_ran_on_a_card_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, card in (("a", "H200"), ("b", None)):
        text = json.dumps({"entry": name, "card": card, "parts": [{"name": "xp", "step_s": 2.0}]})
        (tmp_path / f"{name}.json").write_text(text)
    main(["table", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[2:] == ["| a, H200 | xp | step_s 2.0 |"]


def test_pieces_are_unpacked_once_all_have_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source/folder"
    source.mkdir(parents=True)
    (source / "a.txt").write_text("a" * 5000)
    pack(below(source.parent), tmp_path / "packed", "-0")
    model = tmp_path / "m.gguf"
    model.write_bytes(bytes(range(256)) * 4)
    parts = {"site.tar.xz": (tmp_path / "packed", "site"), "m.gguf": (model, "project/models")}
    split(parts, tmp_path / "pieces", 500)
    late = tmp_path / "m.gguf.2"
    (tmp_path / "pieces/m.gguf.2").rename(late)
    unpack(tmp_path / "pieces")
    assert "m.gguf: 1 of 3 pieces to come" in capsys.readouterr().out
    assert (tmp_path / "pieces/site/folder/a.txt").read_text() == "a" * 5000
    late.rename(tmp_path / "pieces/m.gguf.2")
    unpack(tmp_path / "pieces")
    assert (tmp_path / "pieces/project/models/m.gguf").read_bytes() == model.read_bytes()
    assert not list((tmp_path / "pieces").glob("*.gguf.*"))


def test_packages_that_the_other_machine_has_stay_out() -> None:
    packed = wanted("numpy\nray==0.1\n", has_skyrl=True)
    assert not {"numpy", "torch", "nvidia-cublas", "flashinfer-python"} & packed["site"].keys()
    assert {"vllm", "ray", "hydra-core"} <= packed["site"].keys()
    assert packed["trl"]["trl"]
    assert "ray" not in wanted("", has_skyrl=False)["site"]
