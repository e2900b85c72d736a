"""On-policy distillation: what a plan refuses, renders and counts, and the advantages of tokens."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.sections import PLACES, distill
from xp.composition import compose
from xp.contrib.contracts.fields import without_spec
from xp.episode.advantages import distilled
from xp.errors import XpError
from xp.lib.models.vocabulary import read_vocabulary, vocabulary_fault
from xp.planning.backend import backend_of
from xp.planning.duration import duration
from xp.planning.memory.estimate import estimate
from xp.planning.memory.weights import weights_of
from xp.planning.plan import build_plan
from xp.spec import Architecture, RunSpec
from xp.worker.tiny_model import SHIPPED

OPD = ("algorithm=opd", "algorithm.distill.teacher=Org/Teacher")
SERVER = (
    *OPD,
    "algorithm.distill.url=http://127.0.0.1:8000/v1",
    "algorithm.distill.key=TEACHER_KEY",
)
SLIME = ("env=whodunit", "backend=slime", "hardware=h200x8", "model=qwen3-4b")
TRL = ("env=whodunit", "backend=trl", "hardware=a100x4", "model=qwen2.5-1.5b-instruct")
NETWORK = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
"""Qwen2.5-7B's config.json, by its own keys."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def stages_of(spec: RunSpec) -> dict[str, Any]:
    return {stage.name: stage for stage in backend_of(spec).render(spec, PLACES)}


def teacher_of(directory: Path, network: dict[str, Any] = NETWORK) -> Path:
    """Directory of a model without weights that can be loaded."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(network))
    (directory / "model.safetensors").touch()
    shutil.copy(SHIPPED / "tokenizer.json", directory)
    return directory


@pytest.mark.parametrize("beside_reward", [False, True])
def test_a_token_has_the_teachers_difference_and_only_if_it_is_trained(beside_reward: bool) -> None:
    teacher = torch.tensor([[-1.0, -math.inf, -3.0], [-0.5, math.nan, -0.1]])
    policy = torch.tensor([[-2.0, -1.0, -1.0], [-0.5, -0.5, -0.5]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    rule = distill("t", coef=0.5, beside_reward=beside_reward)
    advantages, gap = distilled(
        rule,
        torch.tensor([[0.25], [9.0]]),
        teacher,
        policy,
        mask,
    )
    reward = 0.25 if beside_reward else 0.0
    assert advantages.tolist() == [[0.5 + reward, 0.0, -1.0 + reward], [0.0, 0.0, 0.0]]
    assert not advantages.requires_grad
    assert float(gap) == -1.0 + 2.0


def test_slime_gets_a_converted_teacher() -> None:
    stages = stages_of(compose([*SLIME, *OPD, "backend.convert_model=true"]))
    files = stages["convert_teacher"].job.files
    teacher = json.loads(files["runs/r/attempt_1/convert_teacher/config.json"])
    assert teacher["manifest"]["model"] == "Org/Teacher"
    assert {"convert", "convert_teacher"} <= {*stages["train"].needs}
    assert "opd" not in without_spec(stages["evaluate"].job.files)


def test_a_teacher_of_another_vocabulary_is_refused_in_planning(tmp_path: Path) -> None:
    other = teacher_of(tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second, *_ = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(content))
    base = ["algorithm=opd", f"training.initial_checkpoint={SHIPPED}"]
    with pytest.raises(XpError) as error:
        build_plan(compose([*base, f"algorithm.distill.teacher={other}"]), "R")
    for part in (
        "algorithm.distill.teacher",
        repr(first),
        "choose a teacher with the policy's tokenizer",
    ):
        assert part in str(error.value)
    assert build_plan(compose([*base, f"algorithm.distill.teacher={SHIPPED}"]), "R").stages


def test_a_teacher_may_have_more_tokens_than_the_policy() -> None:
    vocabulary = read_vocabulary(SHIPPED)
    assert vocabulary
    more = {**vocabulary, "<more>": len(vocabulary)}
    assert vocabulary_fault(vocabulary, more) is None
    assert "'<more>'" in str(vocabulary_fault(more, vocabulary))


def test_a_vocabulary_is_that_of_transformers() -> None:
    from transformers import AutoTokenizer

    assert read_vocabulary(SHIPPED) == AutoTokenizer.from_pretrained(SHIPPED).get_vocab()


def test_a_list_of_pieces_is_read_as_unigrams_tokenizer_writes_it(tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import Unigram

    tokenizer = Tokenizer(Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer.add_special_tokens([AddedToken("<end>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert (
        read_vocabulary(tmp_path)
        == tokenizer.get_vocab()
        == {"<unk>": 0, "a": 1, "b": 2, "<end>": 3}
    )


def test_megatrons_teacher_must_have_the_policys_network(tmp_path: Path) -> None:
    teacher = teacher_of(tmp_path / "teacher")
    spec = compose(
        [
            *SLIME,
            "algorithm=opd",
            f"algorithm.distill.teacher={teacher}",
            "backend.convert_model=true",
        ]
    )
    with pytest.raises(XpError, match=r"hidden_size is 2560, and config\.json has 3584"):
        build_plan(spec, "R")


def test_the_plan_counts_a_loaded_teacher(tmp_path: Path) -> None:
    from xp.lib.models.network import network_of

    teacher = teacher_of(tmp_path / "teacher")
    network = network_of(NETWORK)
    assert network is not None
    size = 2 * weights_of(Architecture(**network)).total
    opd = ("algorithm=opd", f"algorithm.distill.teacher={teacher}")
    plain = estimate(compose(TRL))
    taught = estimate(compose([*TRL, *opd]))
    assert taught.training["teacher"] == taught.generation["teacher"] == size / 4
    assert taught.training_peak >= plain.training_peak + size / 4
    assert "teacher" not in estimate(compose([*TRL, *SERVER])).training
    # A teacher of unknown size counts as the policy with its 1.5 billion parameters; this one has 7.6 billion.
    times = [duration(compose([*TRL, *words])) for words in ((), OPD, opd)]
    plain_s, unknown_s, taught_s = (time.high for time in times if time is not None)
    assert taught_s - plain_s == pytest.approx((unknown_s - plain_s) * 7.6156 / 1.5437, rel=1e-4)


def test_the_plan_counts_a_teachers_part_for_pictures(tmp_path: Path) -> None:
    vision = {"depth": 2, "embed_dim": 64, "mlp_ratio": 4, "patch_size": 14}
    seeing = {**NETWORK, "vision_config": vision}
    sizes = []
    for name, network in (("blind", NETWORK), ("seeing", seeing)):
        teacher = teacher_of(tmp_path / name, network)
        spec = compose([*TRL, "algorithm=opd", f"algorithm.distill.teacher={teacher}"])
        sizes.append(estimate(spec).training["teacher"])
    # Two bytes of each weight of the layers, on four accelerators.
    assert sizes[1] - sizes[0] == 2 * 2 * (4 * 64**2 + 2 * 64 * 256) / 4


@pytest.mark.parametrize("where", [TRL, SLIME])
def test_the_key_of_a_server_goes_to_the_jobs_by_its_name(where: tuple[str, ...]) -> None:
    assert (
        stages_of(compose([*where, *SERVER]))["train"].job.secrets["TEACHER_KEY"] == "TEACHER_KEY"
    )
    assert "TEACHER_KEY" not in stages_of(compose([*where]))["train"].job.secrets


def test_the_key_of_a_teachers_server_is_a_secret_of_the_training() -> None:
    def secrets(*words: str) -> dict[str, bool]:
        stages = build_plan(compose([*TRL, *words]), "r").stages
        return {stage.name: "TEACHER_KEY" in stage.job.secrets for stage in stages}

    with_key = secrets(*SERVER)
    assert (with_key["train"], with_key["prepare"]) == (True, False)
    assert not any(secrets(*SERVER[:-1]).values())
