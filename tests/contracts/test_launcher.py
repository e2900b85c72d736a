"""The contract of launchers, on this machine."""

from __future__ import annotations

import pytest

from tests.support.launching import stage
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launcher
from xp.execution.launchers.local import LocalLauncher
from xp.planning.job import Runtime


class TestLocalLauncher(LauncherSuite):
    """`launcher=local`."""

    @pytest.fixture
    def launcher(self) -> Launcher:
        return LocalLauncher(grace_s=1.0, on_screen=False)

    def test_another_supervisor_cannot_start_the_same_stage_again(self, context: Context) -> None:
        once = stage("once", "open('count', 'a').write('x')")
        first = LocalLauncher(1.0, on_screen=False)
        first.wait(first.submit(once, context), lambda _: None)
        with pytest.raises(XpError, match="was started before") as caught:
            LocalLauncher(1.0, on_screen=False).submit(once, context)
        assert caught.value.code == ExitCode.RUN_DIR
        assert (context.outputs / "count").read_text() == "x"

    def test_a_missing_module_is_named_with_the_command_that_installs_it(
        self, context: Context
    ) -> None:
        needy = stage(
            "train", "pass", runtime=Runtime(packages=("json", "no_such_trainer", "other.part"))
        )
        with pytest.raises(
            XpError, match=r"no_such_trainer, other.*-m pip install no_such_trainer other"
        ) as caught:
            LocalLauncher().check([needy], context)
        assert caught.value.code == ExitCode.RUNTIME

    def test_a_runtime_interpreter_that_does_not_exist_is_refused(self, context: Context) -> None:
        needy = stage("train", "pass", runtime=Runtime(python="/no/such/python"))
        with pytest.raises(XpError, match="/no/such/python"):
            LocalLauncher().check([needy], context)

    def test_a_missing_checkout_is_refused_with_the_way_to_set_it(
        self, context: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SOME_PATH", raising=False)
        with pytest.raises(XpError, match="export SOME_PATH="):
            LocalLauncher().check(
                [stage("train", "pass", runtime=Runtime(project="SOME_PATH"))], context
            )
