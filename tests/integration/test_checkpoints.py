"""docs/models.md is made from counts, plans and tests that exist; the options of the most counted checkpoints are planned."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cases import few
from tools.checkpoints import (
    ENGINE_PROOF,
    FAMILY_FIELDS,
    NO,
    NOT_TRIED,
    TRAINERS,
    YES,
    answer,
    most_trained,
    page,
    planned,
    recorded_sizes,
    sizes,
    trained,
)
from xp.composition import compose
from xp.errors import XpError
from xp.fields.limits import claims, limits_of, proof_of
from xp.lib.models.files import known_config
from xp.lib.models.network import COUNTED, network_of
from xp.lib.models.weights import media_parameters
from xp.planning.memory.weights import weights_of
from xp.planning.plan import build_plan
from xp.spec import Architecture

ROOT = Path(__file__).parents[2]
OPTIONS = (
    *("qwen3.5-35b-a3b", "qwen3-vl-8b-instruct", "olmo-3-7b-instruct"),
    *("qwen3.5-0.8b", "qwen3.6-35b-a3b"),
)
"""Options of checkpoints that many scripts name."""
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "trl": ("hardware=8xB200", "backend.engine.tensor_parallel=4"),
    "skyrl": (
        "hardware=8xH100",
        "backend.parallel={strategy: megatron, tensor: 4, cpu_optimizer: true}",
    ),
    "slime": ("hardware=8xH100", "backend.parallel={tensor: 4, cpu_optimizer: true}"),
}
EXPERTS = ("backend.parallel.expert=8", "backend.engine.tensor_parallel=4")


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_is_current() -> None:
    assert (ROOT / "docs/models.md").read_text(encoding="utf-8") == page(), "run make docs"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_yes_names_a_test_and_a_no_has_a_reason() -> None:
    answers = {
        (trainer, one.name): answer(trainer, one.name)
        for one in most_trained()
        for trainer in TRAINERS
    }
    tests = {f"`{test}`" for members in trained().values() for test in members.values()}
    by_verdict = {
        verdict: {given.proof for given in answers.values() if given.verdict == verdict}
        for verdict in (YES, NO, NOT_TRIED)
    }
    assert by_verdict[YES]
    assert by_verdict[YES] <= tests
    assert by_verdict[NO]
    assert "" not in by_verdict[NO]
    assert by_verdict[NOT_TRIED] <= {""}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_refusal_in_the_table_has_a_proof_or_is_xps_own() -> None:
    refusals = {
        (trainer, one.name): planned(trainer, one.name)[0]
        for one in most_trained()
        for trainer in TRAINERS
    }
    assert any(refusals.values())
    for (trainer, name), refusal in refusals.items():
        if refusal is not None:
            assert answer(trainer, name).verdict == NO
            assert refusal.field.startswith(FAMILY_FIELDS)
            limits = limits_of(trainer)
            claimed = claims(refusal.reason)
            assert all(proof_of(limits, refusal.field, text) for text in claimed), refusal


def test_every_test_of_a_family_exists() -> None:
    names = [test for tests in trained().values() for test in tests.values()]
    assert names
    for name in (*names, ENGINE_PROOF):
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in functions, name


@pytest.mark.slow
def test_sizes_are_those_of_transformers() -> None:
    assert sizes() == recorded_sizes()


def test_a_known_network_is_as_large_as_transformers_says() -> None:
    """The plan's own count, where it counts the family, beside the number of weights of transformers' class."""
    compared = 0
    for name, size in recorded_sizes().items():
        config = known_config(name)
        assert config is not None
        network = network_of(config)
        assert network is not None
        vision = config.get("vision_config", {"intermediate_size": 0})
        if network["model_type"] in COUNTED and "intermediate_size" in vision:
            number = weights_of(Architecture(**network)).total + media_parameters(None, config)
            assert number / size == pytest.approx(1, rel=0.05), name
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("option", few(OPTIONS, 3))
def test_an_option_is_planned_with_each_trainer(option: str, trainer: str) -> None:
    words = [
        *("env=gsm8k_hub", f"model={option}", f"backend={trainer}", *LAYOUTS[trainer]),
        "training.micro_batch_size=1",
    ]
    experts = "a3b" in option
    if experts:
        words += EXPERTS[trainer == "trl" :]
    spec = compose(words)
    if answer(trainer, str(spec.model.path)).verdict == NO:
        with pytest.raises(XpError, match=r"model\.architecture|model\.path"):
            build_plan(spec, "r")
    else:
        assert build_plan(spec, "r").stages
