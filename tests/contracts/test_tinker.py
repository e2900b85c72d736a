"""The contract of backends on a service, which is found by its entry point alone."""

from __future__ import annotations

from pathlib import Path

from tests.support.proofs import missing_tests
from tests.support.tinker_server import needs_entry_point
from xp.contrib.contracts.backend import BackendSuite
from xp.contrib.contracts.fields import composed, dropped
from xp.contrib.tinker import prices
from xp.fields.limits import limits_of
from xp.planning.backend import backend_of

REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "backend=tinker", "hardware=tinker")
pytestmark = needs_entry_point


class TestTinker(BackendSuite):
    words = REFERENCE


class TestTinkerOnALaptop(BackendSuite):
    words = ("env=whodunit_mini", "backend=tinker")


def test_a_changed_field_of_a_fine_tuning_changes_the_job_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").touch()
    base = (*REFERENCE, f"sft.data={tmp_path}/talk.jsonl")
    spec = composed(base)
    meanings = backend_of(spec).meanings(spec)
    fields = [field for field in meanings if field.startswith("sft.")]
    assert {f"sft.{name}" for name in type(spec.sft).model_fields} == set(fields)
    assert dropped(base, fields) == []


def test_every_note_and_refusal_has_a_proof_and_every_proof_is_a_test() -> None:
    module = backend_of(composed(REFERENCE))
    limits = limits_of("tinker")
    assert missing_tests(limits) == []
    columns = {**module.COLUMNS, **module.SFT_COLUMNS}  # type: ignore[attr-defined]
    proved = {limit.field for limit in limits}
    unproved = [
        path
        for path, column in columns.items()
        if (column.refuse or column.note) and path not in proved
    ]
    assert unproved == []


def test_a_plan_counts_every_turn_and_every_pass_of_a_service() -> None:
    words = (*REFERENCE, "training.epochs=null", "training.num_steps=2", "env.held_out=null")
    words = (*words, "training.prompts_per_step=2", "training.group_size=4")
    plain = composed((*words, "algorithm.ratio_from=engine"))
    (turns,) = {member.max_turns for member in plain.env.members.values()}
    assert prices.most_turns(plain) == turns
    played = 2 * 2 * 4 * 100.0
    assert prices.tokens(plain, 2, 100.0, 100.0, 1) == (played, played, played)
    assert prices.tokens(plain, 2, 100.0, 100.0, turns)[0] == played * turns
    penalty = ("training.kl_coef=0.1", "algorithm.use_kl_in_reward=true")
    assert prices.num_forward_passes(plain) == 0
    assert prices.num_forward_passes(composed((*words, *penalty))) == 2
    tuned = composed((*words, "sft.data=solve", "sft.epochs=null", "sft.num_updates=3"))
    examples = 3 * tuned.sft.batch_size
    added = examples * (tuned.sft.max_tokens or 100.0)
    assert prices.tokens(tuned, 2, 100.0, 100.0, 1)[2] == played + added
