"""Contract of launchers: a subclass of `LauncherSuite` that makes your launcher inherits the tests."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from xp.contrib.contracts.jobs import AWKWARD, CPU, DEADLINE_S, eventually, stage
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launcher
from xp.execution.launchers.files import copy_package
from xp.lib.secrets.redaction import Redactor
from xp.planning.job import Job, Stage


class LauncherSuite:
    """Base of a launcher's tests. Subclasses define the fixture `launcher`, and attributes that differ."""

    start_s = DEADLINE_S
    """Seconds that a job may take to start and to end, on a busy machine too."""
    inherits = True
    """True if a job has the environment variables of the shell that started xp."""

    def root(self, context: Context) -> Path:
        """Path of a job's outputs root on this machine."""
        return context.outputs

    def provide(self, secrets: dict[str, str]) -> None:
        """Store the secrets as a user would before a launch, if the launcher does not pass the values itself."""

    @pytest.fixture
    def launcher(self) -> Launcher:
        raise NotImplementedError

    @pytest.fixture
    def context(self, tmp_path: Path) -> Context:
        return self.make_context(tmp_path)

    @staticmethod
    def make_context(tmp_path: Path) -> Context:
        context = Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
        copy_package(context.outputs / context.code)
        return context

    @staticmethod
    def ended(launcher: Launcher, submitted: Stage, context: Context) -> tuple[int, str]:
        """Exit code and log of a stage."""
        launch = launcher.submit(submitted, context)
        return launcher.wait(launch, lambda _: None), (context.outputs / launch.log).read_text()

    def test_the_exit_code_is_the_jobs(self, launcher: Launcher, context: Context) -> None:
        for code in (0, 1, 7, 74):
            assert (
                self.ended(launcher, stage(f"exit{code}", f"raise SystemExit({code})"), context)[0]
                == code
            )

    def test_a_job_that_dies_of_a_signal_says_which(
        self, launcher: Launcher, context: Context
    ) -> None:
        assert (
            self.ended(launcher, stage("dies", "import os; os.kill(os.getpid(), 9)"), context)[0]
            == 128 + 9
        )

    def test_a_program_that_does_not_exist_is_no_success(
        self, launcher: Launcher, context: Context
    ) -> None:
        absent = Stage("absent", Job(("/no/such/program",), {}, (), CPU))
        code, log = self.ended(launcher, absent, context)
        assert code == ExitCode.RUNTIME
        assert "/no/such/program" in log

    def test_the_log_is_followed_while_the_job_runs(
        self, launcher: Launcher, context: Context
    ) -> None:
        wait = "while not os.path.exists('go'): time.sleep(0.02)"
        code = f"import os, time\nprint('first', flush=True)\n{wait}\nprint('last')"
        launch = launcher.submit(stage("talks", code), context)
        heard: list[str] = []
        waiter = threading.Thread(target=lambda: launcher.wait(launch, heard.append), daemon=True)
        waiter.start()
        try:
            eventually(lambda: "first" in "".join(heard), self.start_s)
            assert (context.outputs / launch.log).read_text() == "first\n"
            assert "last" not in "".join(heard)
        finally:
            (
                self.root(context) / "go"
            ).touch()  # A job that waits for ever would outlive a failed test.
            waiter.join(self.start_s)
        assert (context.outputs / launch.log).read_text() == "first\nlast\n"

    def test_standard_error_is_in_the_log_too(self, launcher: Launcher, context: Context) -> None:
        errs = stage("errs", "import sys; print('out'); print('err', file=sys.stderr)")
        assert sorted(self.ended(launcher, errs, context)[1].split()) == ["err", "out"]

    def test_files_are_there_and_the_working_directory_is_the_outputs_root(
        self, launcher: Launcher, context: Context
    ) -> None:
        text = "a: 1\n  odd ${x} 'quotes' → ü\r\nend"
        code = "import shutil; shutil.copy('runs/run/attempt_1/copy/in.txt', 'out.txt')"
        copy = stage("copy", code, files={"runs/run/attempt_1/copy/in.txt": text})
        assert self.ended(launcher, copy, context)[0] == 0
        assert (self.root(context) / "out.txt").read_bytes().decode() == text

    def test_files_that_lead_out_of_the_outputs_are_refused(
        self, launcher: Launcher, context: Context
    ) -> None:
        (context.outputs / "link").symlink_to("/tmp")
        for number, name in enumerate(
            ("../evil", "/tmp/evil", "a/../../evil", "link/evil", "nul\0")
        ):
            with pytest.raises(XpError, match="leads out of"):
                launcher.submit(stage(f"evil{number}", "print('ran')", files={name: "x"}), context)
        assert not Path("/tmp/evil").exists()

    def test_a_file_that_is_there_with_other_content_is_never_replaced(
        self, launcher: Launcher, context: Context
    ) -> None:
        (context.outputs / "kept").write_text("old")
        with pytest.raises(XpError, match="other content"):
            launcher.submit(stage("writes", "pass", files={"kept": "new"}), context)
        assert (context.outputs / "kept").read_text() == "old"

    def test_values_with_quotes_newlines_and_shell_syntax_arrive_as_they_are(
        self, launcher: Launcher, context: Context
    ) -> None:
        code = "import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open('seen.json', 'w'))"
        secrets = {f"SECRET_{name}": value for name, value in AWKWARD.items()}
        self.provide(secrets)
        job = stage(
            "echoes", code, *AWKWARD.values(), env=AWKWARD, secrets={name: name for name in secrets}
        )
        assert self.ended(launcher, job, replace(context, secrets=secrets))[0] == 0
        environment, arguments = json.loads((self.root(context) / "seen.json").read_text())
        assert {name: environment.get(name) for name in AWKWARD} == AWKWARD
        assert {name: environment.get(name) for name in secrets} == secrets
        assert arguments == list(AWKWARD.values())
        assert not (self.root(context) / "pwned").exists()

    def test_a_secret_is_in_no_log_however_it_is_written(
        self, launcher: Launcher, context: Context
    ) -> None:
        secret = 'XPCANARY_4711/"quoted"'
        code = (
            "import base64, json, os, urllib.parse; s = os.environ['KEY']; print(s); print(json.dumps({'k': s}));"
            "print(urllib.parse.quote(s)); print(base64.b64encode(s.encode()).decode());"
            "print(base64.b64encode(json.dumps({'api_key': s}).encode()).decode()); print(repr([s])); print('harmless')"
        )
        hiding = replace(context, secrets={"KEY": secret}, redactor=Redactor([secret]))
        self.provide({"KEY": secret})
        launch = launcher.submit(stage("leaks", code, secrets={"KEY": "KEY"}), hiding)
        heard: list[str] = []
        launcher.wait(launch, heard.append)
        log = (context.outputs / launch.log).read_text()
        core = base64.b64encode(secret.encode()).decode()[:20]
        for text in (log, "".join(heard)):
            assert "XPCANARY" not in text
            assert core not in text
            assert text.count("[REDACTED]") >= 6
            assert "harmless" in text
        assert secret not in repr(hiding) + repr(launch)

    def test_a_variable_that_is_withheld_does_not_reach_the_job(
        self, launcher: Launcher, context: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTHER_STAGES_KEY", "XPCANARY_other")
        monkeypatch.setenv("LC_ORDINARY", "stays")  # of a kind that passes to every job here
        code = "import os; print(os.environ.get('OTHER_STAGES_KEY'), os.environ.get('LC_ORDINARY'))"
        withholding = replace(context, withheld=frozenset({"OTHER_STAGES_KEY"}))
        expected = "None stays\n" if self.inherits else "None None\n"
        assert self.ended(launcher, stage("looks", code), withholding)[1] == expected

    def test_a_stage_is_submitted_once_however_often_it_is_asked_for(
        self, launcher: Launcher, context: Context
    ) -> None:
        once = stage("once", "open('count', 'a').write('x'); import time; time.sleep(0.3)")
        first = launcher.submit(once, context)
        assert launcher.submit(once, context) == first
        assert launcher.wait(first, lambda _: None) == 0
        assert (self.root(context) / "count").read_text() == "x"

    def test_cancel_ends_the_job(self, launcher: Launcher, context: Context) -> None:
        launch = launcher.submit(
            stage("sleeps", "print('up', flush=True); import time; time.sleep(600)"), context
        )
        heard: list[str] = []
        codes: list[int] = []
        waiter = threading.Thread(
            target=lambda: codes.append(launcher.wait(launch, heard.append)), daemon=True
        )
        waiter.start()
        try:
            eventually(lambda: heard, self.start_s)
        finally:
            launcher.cancel(launch)
            waiter.join(self.start_s)  # The job itself would run longer.
        assert len(codes) == 1
        assert codes[0] != 0

    def test_the_copied_package_is_the_one_that_runs(
        self, launcher: Launcher, context: Context
    ) -> None:
        imports = stage("imports", "import xp; print(xp.__file__)")
        expected = context.outputs / context.code / "xp/__init__.py"
        assert self.ended(launcher, imports, context)[1].strip() == str(expected)

    def test_the_job_cannot_read_from_the_terminal(
        self, launcher: Launcher, context: Context
    ) -> None:
        reads = stage("reads", "import sys; print(repr(sys.stdin.read()))")
        assert self.ended(launcher, reads, context) == (0, "''\n")
