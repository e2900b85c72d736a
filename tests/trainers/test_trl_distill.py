"""On-policy distillation under TRL: a loaded teacher and one on a server give the same advantages, token by token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stubs.teacher_server import TeacherServer, serving
from tests.support.sections import distill
from tools.parity.measure import case_of, spec_of
from tools.parity.model import TEACHER, make_model
from tools.parity.options import OPTIONS
from tools.parity.program import measured
from tools.parity.recorded import BAR, ParityCase, batch
from tools.parity.trl_program import _trainer, updates
from xp.backends.trl.worker.means import trained
from xp.backends.trl.worker.teacher import Teacher
from xp.episode.advantages import DISTILL_KL
from xp.errors import ExitCode, XpError
from xp.worker.engines.teacher import TeacherApi, check_teacher
from xp.worker.tiny_model import SHIPPED


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The measure's model, with the shipped one, which is larger, beside it as the teacher."""
    directory = tmp_path_factory.mktemp("models") / "model"
    make_model(directory, SHIPPED)
    shutil.copytree(SHIPPED, directory.with_name(TEACHER))
    return directory


@pytest.fixture
def server(model: Path) -> Iterator[TeacherServer]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model.with_name(TEACHER))
    with serving(network, AutoTokenizer.from_pretrained(model)) as running:
        yield running


def case(name: str = "algorithm=opd") -> ParityCase:
    option = next(one for one in OPTIONS if one.name == name)
    return replace(case_of(option, spec_of(option, "trl", ())), precision="float32")


def scored(model: Path, scratch: Path, other: Teacher | None = None) -> dict[str, Any]:
    """What a trainer's loss takes of the recorded batch, with the loaded teacher or another one."""
    trainer = _trainer(case(), batch(), model, scratch)
    if other is not None:
        trainer._xp_teacher = other
    seen: dict[str, Any] = {}
    correct = trainer._corrected

    def watching(output: dict[str, Any]) -> Any:
        seen.update({**output, "is_trained": trained(output) > 0})
        return correct(output)

    trainer._corrected = watching
    trainer.train()
    return {**seen, DISTILL_KL: trainer._xp_log._episodes[DISTILL_KL]}


def test_a_teacher_on_a_server_teaches_what_the_same_one_does_here(
    model: Path, server: TeacherServer, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    here = scored(model, tmp_path / "here")
    there = scored(
        model,
        tmp_path / "there",
        Teacher(
            server.rule,
            server.environ,
            tokenizer,
            torch.float32,
        ),
    )
    assert here["advantages"].shape == here["completion_ids"].shape
    torch.testing.assert_close(
        there["advantages"],
        here["advantages"],
        rtol=0,
        atol=1e-5,
    )
    assert bool((here["advantages"][~here["is_trained"]] == 0).all())
    assert here["advantages"][here["is_trained"]].abs().min() > 0
    assert here[DISTILL_KL] == pytest.approx(
        -float(here["advantages"].sum() / here["is_trained"].sum()), rel=1e-5
    )
    assert there[DISTILL_KL] == pytest.approx(here[DISTILL_KL], rel=1e-4)


def test_the_update_is_the_formulas(tmp_path: Path) -> None:
    exact = replace(case("opd beside the reward"), precision="float64")
    model = tmp_path / "model"
    make_model(model, SHIPPED)
    make_model(model.with_name(TEACHER), SHIPPED, seed=1)
    found = measured(exact, batch(), model, tmp_path, updates)
    assert max(value for value in found.values() if isinstance(value, float)) < BAR


def test_a_teacher_has_no_gradient_and_no_optimizer(model: Path, tmp_path: Path) -> None:
    trainer = _trainer(case(), batch(), model, tmp_path)
    before = {name: one.clone() for name, one in trainer._xp_teacher.model.named_parameters()}
    trainer.train()
    for name, one in trainer._xp_teacher.model.named_parameters():
        assert not one.requires_grad
        assert torch.equal(one, before[name])
    taught = {id(one) for group in trainer.optimizer.param_groups for one in group["params"]}
    assert not taught & {id(one) for one in trainer._xp_teacher.model.parameters()}


@pytest.mark.parametrize("where", ["here", "on a server"])
def test_another_vocabulary_ends_the_start(
    where: str, model: Path, server: TeacherServer, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    content = json.loads((model / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    # One token less, so that all after it have other ids.
    shifted = {
        token: number for number, token in enumerate([*by_id[:300], *by_id[301:], by_id[300]])
    }
    content["model"]["vocab"] = {
        token: vocabulary[by_id[number]] for token, number in shifted.items()
    }
    policy = tmp_path / "policy"
    policy.mkdir()
    for file in model.glob("*.json"):
        (policy / file.name).write_text(file.read_text())
    (policy / "tokenizer.json").write_text(json.dumps(content))
    rule = server.rule if where == "on a server" else distill(str(model))
    with pytest.raises(XpError, match="choose a teacher with the policy's tokenizer") as error:
        check_teacher(rule, str(policy), server.environ)
    assert error.value.code is ExitCode.CONFIG
    check_teacher(rule, AutoTokenizer.from_pretrained(model), server.environ)


def test_a_server_that_gives_no_log_probabilities_or_wants_another_key_is_named(
    server: TeacherServer,
) -> None:
    api = TeacherApi(server.rule, server.environ)
    server.replies.append((200, {"choices": [{"text": "x"}]}))
    with pytest.raises(
        XpError, match=r"algorithm.distill.url=.*no prompt_logprobs.*a vLLM server is needed"
    ) as error:
        api.score([20, 21, 22], 2)
    assert error.value.code is ExitCode.ENGINE
    with pytest.raises(XpError, match="it is TEACHER_KEY") as refused:
        TeacherApi(server.rule, {"TEACHER_KEY": "another"}).score([20, 21], 1)
    assert refused.value.code is ExitCode.SECRET
    assert "another" not in str(refused.value)
