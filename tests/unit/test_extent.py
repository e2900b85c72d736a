"""What a plan says of the size of a run is what is played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.task_set import write_manifest
from xp.cli.display import arithmetic
from xp.composition import compose
from xp.planning.plan import build_plan
from xp.planning.run_size import NumTasks, ineffective_lines, num_tasks
from xp.planning.size_lines import evaluation_line, held_out_lines, profile_lines
from xp.planning.size_refusals import profile_refusals
from xp.spec import RunSpec
from xp.tasks.profile import Profile


def test_the_embedded_default_evaluates_on_512_episodes() -> None:
    share = f"{1024 / (1024 + 12 * 64):.0%}"
    assert f"512 episodes, before and after training: 1,024 episodes, {share}" in evaluation_line(
        compose([])
    )


def test_an_environments_number_of_held_out_tasks_comes_from_cache(tmp_path: Path) -> None:
    spec = compose(["env=multiply", f"outputs={tmp_path}"])
    assert evaluation_line(spec).endswith("number of tasks known after prepare")
    write_manifest(spec, train=2000, held_out=500)
    assert (
        "500 held-out tasks x 1 episode = 500 episodes, before and after training: 1,000"
        in evaluation_line(spec)
    )
    grouped = ["env=multiply", f"outputs={tmp_path}", "env.group_reward_fn=my_pkg:compared"]
    assert "after training, without rewards of groups" in evaluation_line(compose(grouped))
    assert "of groups" not in evaluation_line(compose([*grouped, "evaluation.samples_per_task=2"]))


SPLIT = "env.held_out.split=train"


@pytest.mark.parametrize(
    ("overrides", "train", "held_out", "rule"),
    [
        ((), None, None, "of split test"),
        (("env.train.num_tasks=7", "env.held_out=null"), 7, 0, "nothing (held_out=null)"),
        (("env.train.indices=[3,3,5]", "env.held_out.num_tasks=5"), 2, 5, "of split test"),
        # Of a split that is trained on, a number is a bound, and a list of tasks is not.
        ((SPLIT, "env.held_out.num_tasks=5"), None, None, "of split train"),
        ((SPLIT, "env.held_out.indices=[1,2,2]"), None, 2, "of split train"),
        (
            (SPLIT, "env.held_out.num_tasks=5", "env.held_out.overlap=allowed"),
            None,
            5,
            "of split train, which training leaves in (overlap=allowed)",
        ),
    ],
)
def test_the_numbers_of_tasks_that_a_spec_names(
    overrides: tuple[str, ...], train: int | None, held_out: int | None, rule: str, tmp_path: Path
) -> None:
    spec = compose(["env=multiply", f"outputs={tmp_path}", *overrides])
    assert num_tasks(spec) == NumTasks(train, held_out)
    later = "; known after prepare" * ("null)" not in rule)
    assert held_out_lines(spec, tmp_path) == [f"held out: {rule}{later}"]


def test_the_numbers_of_a_mixture_are_sums(tmp_path: Path) -> None:
    def mix(*numbers: int) -> RunSpec:
        names = ("whodunit_mini", "multiply")
        own = [
            f"env.members.{name}.{selection}.num_tasks={number}"
            for name, number in zip(names, numbers, strict=False)
            for selection in ("train", "held_out")
        ]
        return compose(["env=whodunit_mini_multiply", f"outputs={tmp_path}", *own])

    assert [num_tasks(mix(*one)) for one in ((3, 4), (3,))] == [
        NumTasks(7, 7),
        NumTasks(None, None),
    ]


def test_the_evaluation_after_the_last_step_is_that_of_the_trained_model() -> None:
    words = [
        "env.held_out.num_tasks=10",
        "training.num_steps=8",
        "evaluation.every=2",
        "evaluation.num_tasks=6",
    ]
    line = evaluation_line(compose(words))
    assert (
        "6 held-out tasks x 1 episode = 6 episodes, before, 3 times during and after training: 30 episodes"
        in line
    )


def test_slimes_view_has_a_line_an_episode(tmp_path: Path) -> None:
    from tests.support.sections import run_spec
    from tests.support.view_rows import row
    from xp.backends.slime.worker.train import write_episodes

    rows = [row(index) for index in range(9)]
    evaluation = run_spec(evaluation__num_tasks=4, evaluation__samples_per_task=2).evaluation
    write_episodes(rows, evaluation, tmp_path / "held_out.jsonl")
    lines = [
        json.loads(line)["metadata"]
        for line in (tmp_path / "held_out.jsonl").read_text().splitlines()
    ]
    assert len({(line["task_id"], line["sample"]) for line in lines}) == 8


def test_a_limit_of_a_turn_that_no_turn_reaches_is_told() -> None:
    limits = ("training.max_response_tokens=256", "training.max_tokens_per_turn=257")
    assert "has no effect: training.max_response_tokens=256 ends" in "\n".join(
        arithmetic(build_plan(compose(limits), "r"))
    )
    assert (
        ineffective_lines(
            compose(["training.max_response_tokens=256", "training.max_tokens_per_turn=256"])
        )
        == []
    )


def test_bounds_of_a_correction_that_is_off_are_told() -> None:
    (line,) = ineffective_lines(compose(["algorithm.importance_upper=3.0"]))
    assert line.startswith("algorithm.importance_lower and importance_upper have no effect")
    on = ["algorithm.importance_upper=3.0", "algorithm.importance_correction=token_truncate"]
    assert ineffective_lines(compose(on)) == []


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("algorithm.use_kl_in_reward=true", "use_kl_in_reward has no effect: training.kl_coef=0"),
        *(
            (f"env.train.{setting}", f"env.train.{setting.partition('=')[0]} has no effect")
            for setting in (
                "curriculum_bounds=[0.2,0.8]",
                "curriculum_exploration=0.5",
                "curriculum_forget=3",
            )
        ),
    ],
)
def test_a_setting_of_what_is_off_is_named(setting: str, line: str) -> None:
    words = ["env=multiply", "training.kl_coef=0"]
    assert ineffective_lines(compose(words)) == []
    (named,) = ineffective_lines(compose([*words, setting]))
    assert line in named
    on = ["training.kl_coef=0.1", "env.train.curriculum=pass_rate"]
    assert ineffective_lines(compose([*words, setting, *on])) == []


def test_a_plan_says_what_a_profile_selects_and_refuses_what_selects_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = Profile("stub", 4, {3: 0.25, 0: 0.0, 1: 0.5, 2: 0.5, 4: 1.0})
    assert profile.within(None, easy_first=False) == (0, 1, 2, 3, 4)
    assert profile.within((0.25, 1.0), easy_first=True) == (4, 1, 2, 3)
    assert [profile.counts(one) for one in ((0.0, 1.0), (0.25, 0.5), (0.6, 0.9))] == [
        (0, 5, 0),
        (1, 3, 1),
        (4, 0, 1),
    ]
    for module in ("size_lines", "size_refusals"):
        monkeypatch.setattr(
            f"xp.planning.{module}.profiles", lambda spec: dict.fromkeys(spec.env.members, profile)
        )
    own = ["env=multiply", "env.train.profile=x"]
    bounds = "with a pass rate of 0.25 to 0.5, 1 below, 1 above"
    spec = compose([*own, "env.train.pass_rate=[0.25,0.5]"])
    line = f"training tasks of multiply: 3 of 5 profiled (stub, 4 tries): 3 {bounds}"
    assert profile_lines(spec) == [line]
    assert list(profile_refusals(spec)) == []
    (refusal,) = profile_refusals(compose([*own, "env.train.pass_rate=[0.6,0.9]"]))
    assert refusal.field == "env.train.pass_rate"
    assert "no task has a pass rate of 0.6 to 0.9: of 5, 4 are below and 1 above" in refusal.reason
    (refusal,) = profile_refusals(
        compose([*own, "env.train.easy_first=true", "training.shuffle=true"])
    )
    assert refusal.field == "env.train.easy_first"
