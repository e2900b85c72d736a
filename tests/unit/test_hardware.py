"""Machines by one word: the table of cards, `hardware=auto` against nvidia-smi's output, and what cards cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tables import rows
from xp.composition import compose, groups
from xp.errors import XpError
from xp.planning.refusals import card_refusals, machine_line
from xp.spec.hardware import card_named, cards


@pytest.mark.parametrize(("word", "fields"), rows("machines", "words"))
def test_a_word_is_a_machine(word: str, fields: list[str]) -> None:
    one = compose([f"hardware={word}"]).hardware
    sizes = (
        one.accelerators_per_node,
        one.accelerator_memory_gb,
        one.num_nodes,
        one.num_cpus,
        one.memory_gb,
    )
    assert [f"{one.name} {one.accelerator} {' '.join(f'{size:g}' for size in sizes)}"] == fields


def recipe(directory: Path, word: str) -> None:
    (directory / "recipes").mkdir()
    text = f"# @package _global_\ndefaults:\n  - override /hardware: {word}\n  - _self_\nseed: 3\n"
    (directory / "recipes" / "ours.yaml").write_text(text)


def test_a_file_as_the_error_describes_it_wins_over_the_word(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "2x8xb200.yaml").write_text(
        "defaults: [_base, _self_]\nname: 2x8xb200\naccelerator: h1000\naccelerators_per_node: 8\n"
        "accelerator_memory_gb: 500.0\nnum_cpus: 100\nmemory_gb: 1000.0\n"
    )
    assert compose(["hardware=2x8xb200"], [tmp_path]).hardware.accelerator_memory_gb == 500


def test_a_turing_card_falls_back_and_refuses_what_it_lacks() -> None:
    spec = compose(["backend=skyrl", "hardware=4xT4"])
    assert spec.model.dtype == "float32"
    assert spec.backend.attention == "sdpa"
    assert list(card_refusals(spec)) == []
    assert machine_line(spec).endswith("the card has no bfloat16 and no FlashAttention 2")
    spec = compose(
        ["backend=skyrl", "hardware=4xT4", "model.dtype=bfloat16", "backend.attention=flash"]
    )
    assert [one.field for one in card_refusals(spec)] == ["model.dtype", "backend.attention"]
    for card, fields in (("T4", ["backend.engine.kv_cache_dtype"]), ("A100", []), ("H100", [])):
        words = [f"hardware=4x{card}", "backend.engine.kv_cache_dtype=fp8"]
        assert [one.field for one in card_refusals(compose(["backend=skyrl", *words]))] == fields


@pytest.mark.parametrize(("shown", "accelerator"), rows("machines", "cards"))
def test_the_card_of_a_name_that_nvidia_smi_shows(shown: str, accelerator: list[str]) -> None:
    name, memory, _ = shown.split(", ")
    card = card_named(name, float(memory) * 1024**2 / 1e9)
    assert card == cards()[accelerator[0]]
    # The name is of the card that the table means: nvidia-smi counts at most a little more or less.
    assert float(memory) * 1024**2 / 1e9 == pytest.approx(card.memory_gb, rel=0.15)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File of the rows that a stub for nvidia-smi shows: name, memory in MiB, compute capability."""
    file = tmp_path / "gpus"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    columns = {"index,memory.used": 'print NR-1 ", 0"', "name,index": 'print $1 ", " NR-1'}
    cases = "".join(
        f"  *={query}) awk -F', ' '{{{code}}}' {file} ;;\n" for query, code in columns.items()
    )
    rows = f"awk -F', ' '{{print NR-1 \", GPU-\" NR \", \" $0}}' {file}"
    program.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}  *) {rows} ;;\nesac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_NUM_NODES", "SLURM_MEM_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    forget()
    return file


def forget() -> None:
    """A process composes for one machine; these tests change it."""
    for cached in (groups.compose_groups, groups._merge):
        cached.cache_clear()


def test_auto_is_this_machine_and_its_slurm_allocation(
    gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.write_text("NVIDIA H100 80GB HBM3, 81559, 9.0\n" * 4)
    one = compose(["hardware=auto"]).hardware
    assert one.name == "h100x4"
    assert one.accelerator_memory_gb == 80
    assert one.num_nodes == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2048")
    forget()
    one = compose(["hardware=auto"]).hardware
    assert one.name == "3x2xh100"
    assert one.num_nodes == 3
    assert one.accelerators_per_node == 2
    assert one.memory_gb == 2


def test_auto_takes_an_unknown_card_by_its_compute_capability(gpus: Path) -> None:
    gpus.write_text("NVIDIA GeForce RTX 6090, 49000, 13.0\n")
    spec = compose(["backend=skyrl", "hardware=auto"])
    assert spec.hardware.name == "rtx6090x1"
    assert spec.hardware.accelerator_memory_gb == 47.9
    assert spec.model.dtype == "bfloat16"
    assert spec.backend.attention == "flash"


@pytest.mark.parametrize(
    ("shown", "fault"),
    {
        "Tesla V100-SXM2-16GB, 16384, 7.0\n": "need Turing or newer",
        "NVIDIA A100-SXM4-80GB, 81920, 8.0\nTesla T4, 15360, 7.5\n": "different GPUs, NVIDIA A100.* and Tesla T4",
    }.items(),
)
def test_auto_refuses_old_and_mixed_cards(gpus: Path, shown: str, fault: str) -> None:
    gpus.write_text(shown)
    with pytest.raises(XpError, match=fault):
        compose(["hardware=auto"])


def test_without_a_gpu_auto_is_the_cpu(gpus: Path, tmp_path: Path) -> None:
    gpus.write_text("")
    recipe(tmp_path, "auto")
    assert compose(["recipes=ours"], [tmp_path]).hardware.name == "cpu"
    spec = compose(["hardware=auto"])
    assert spec.hardware.name == "cpu"
    assert spec.model.name == "tiny"
