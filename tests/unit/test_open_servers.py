"""A plan says which servers of a run need no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.cli.display import show_plan
from xp.composition import compose
from xp.planning.plan import build_plan


@pytest.mark.parametrize(
    ("words", "is_open"),
    [
        (("recipes=whodunit-slime",), False),
        (("recipes=whodunit-slime", "launcher=ray"), True),
        (("recipes=whodunit-slime", "backend.overrides={rollout-external-engine-addrs: 10.0.0.1:1}"), True),
        (("recipes=whodunit-slime", "backend.overrides={sglang-router-ip: 10.0.0.1}"), True),
        (("recipes=whodunit-skyrl",), False),
        (("recipes=whodunit-skyrl", "launcher=ray"), True),
        (("recipes=whodunit-skyrl", "launcher=ray", "launcher.start_head=true"), False),
        (("recipes=whodunit-skyrl", "hardware.num_nodes=2", "launcher=ray", "launcher.address=http://head:8265"), True),
        (("recipes=whodunit-trl",), False),
        (("recipes=whodunit-trl", "hardware.num_nodes=2", "launcher=slurm"), False),
    ],
)
def test_a_plan_says_which_servers_of_a_run_want_no_key(
    words: tuple[str, ...], is_open: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show_plan(build_plan(compose([*words]), "shown"), Path("outputs"), with_files=False)
    doors = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("open: ")]
    assert len(doors) == is_open
    assert all("need no key" in line for line in doors)
