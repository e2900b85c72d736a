"""Which fields a launcher's section may have: one that would be ignored is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.launching import launcher_spec
from xp.errors import ExitCode, XpError


@pytest.mark.parametrize("name", ["local", "ray", "slurm", "modal"])
def test_every_launcher_has_an_option(name: str) -> None:
    assert launcher_spec(name).name == name


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("local", {"partition": "gpu"}, "belongs to launcher=slurm"),
        ("local", {"address": "http://127.0.0.1:8265"}, "belongs to launcher=ray"),
        ("slurm", {"start_head": True}, "belongs to launcher=ray"),
        ("slurm", {"secret_name": "mine"}, "belongs to launcher=modal"),
        ("modal", {"secrets_file": "/x"}, "belongs to launcher=ray and slurm"),
        ("ray", {"requeue": False}, "belongs to launcher=slurm"),
        ("ray", {"array": True}, "belongs to launcher=slurm"),
        ("local", {"container": "apptainer"}, "belongs to launcher=slurm"),
        ("slurm", {"array": True}, "set detach=true too"),
        ("slurm", {"array_at_once": 2}, "set array=true too"),
        ("slurm", {"container": "docker"}, "pyxis"),
        ("slurm", {"gres": None}, "needs a value with launcher=slurm"),
        ("modal", {"timeout_s": None}, "needs a value with launcher=modal"),
        ("modal", {"timeout_s": 90000}, "timeout_s"),
        ("local", {"detach": True}, "detach"),
        ("ray", {"detach": True, "start_head": True}, "detach"),
        ("ray", {"address": "http://127.0.0.1:1", "start_head": True}, "one of the two"),
    ],
)
def test_a_field_that_would_be_ignored_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(XpError, match=said) as caught:
        launcher_spec(name, **changes)
    assert caught.value.code == ExitCode.CONFIG
