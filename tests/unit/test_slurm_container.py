"""Words that put a batch job's stage into a container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.launching import launcher_spec, stage
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, StageContext
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.launchers.slurm_job import apptainer_words, check_container, srun_options
from xp.planning.job import Runtime, Stage

ROOT = ["/shared/out", "/home/me/.xp/secrets/r"]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("nvcr.io/nvidia/pytorch:26.01-py3", "nvcr.io#nvidia/pytorch:26.01-py3"),
        ("localhost:5000/trl:1", "localhost:5000#trl:1"),
        ("/images/trl.sqsh", "/images/trl.sqsh"),
    ],
)
def test_pyxis_is_told_the_image_by_enroots_name(image: str, named: str) -> None:
    options = srun_options(image, ROOT, "/shared/out")
    assert f"--container-image={named}" in options
    assert (
        "--container-mounts=/shared/out:/shared/out,/home/me/.xp/secrets/r:/home/me/.xp/secrets/r"
        in options
    )


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("slimerl/slime:nightly", "docker://slimerl/slime:nightly"),
        ("/images/trl.sif", "/images/trl.sif"),
    ],
)
def test_apptainer_binds_the_outputs_and_the_secrets(image: str, named: str) -> None:
    words = apptainer_words(image, ROOT, "/shared/out", has_gpus=True)
    assert words == (
        *("apptainer", "exec", "--nv", "--no-home", "--bind", "/shared/out,/home/me/.xp/secrets/r"),
        *("--pwd", "/shared/out", named),
    )
    assert "--nv" not in apptainer_words(image, ROOT, "/shared/out", has_gpus=False)


@pytest.mark.parametrize(
    ("container", "root", "fault"),
    [
        ("pyxis", "out", "launcher.container=pyxis: this Slurm has no pyxis"),
        ("apptainer", "a,b", "a,b cannot be mounted: it has a comma or a colon"),
    ],
)
def test_a_container_needs_its_plugin_and_paths_that_it_can_name(
    container: str, root: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n[ $1 = --help ] && echo '--mpi'\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    check_container(
        launcher_spec("slurm", container="apptainer"),
        Context("r", 1, tmp_path / "out", "runs/r/attempt_1"),
    )
    context = Context("r", 1, tmp_path / root, "runs/r/attempt_1")
    with pytest.raises(XpError, match=fault) as caught:
        check_container(launcher_spec("slurm", container=container), context)
    assert caught.value.code is ExitCode.RUNTIME


@pytest.mark.parametrize("container", ["apptainer", "pyxis"])
@pytest.mark.parametrize(
    ("secrets", "file", "mounted"),
    [
        (
            {},
            None,
            (),
        ),  # nothing makes the run's directory then, and no container starts without it
        ({"KEY": "MY_KEY"}, None, ("{home}/.xp/secrets/run",)),
        ({"KEY": "MY_KEY"}, "/held/on/the/nodes.json", ("/held/on/the/nodes.json",)),
    ],
)
def test_a_container_mounts_the_secrets_of_a_stage_that_has_some(
    container: str,
    secrets: dict[str, str],
    file: str | None,
    mounted: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN", "HF_HOME", "XP_PASS_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    context = LauncherSuite.make_context(tmp_path)
    job = stage("train", "pass", secrets=secrets).job
    contained = Stage("train", replace(job, runtime=Runtime(image="/images/trl.sqsh")))
    spec = launcher_spec("slurm", container=container, secrets_file=file)
    (text,) = (
        SlurmLauncher(spec, context.outputs).preview([StageContext(contained, context)]).values()
    )
    paths = [str(context.outputs), *(path.format(home=tmp_path / "home") for path in mounted)]
    if container == "apptainer":
        assert f"--bind {','.join(paths)} --pwd" in text
    else:
        mounts = ",".join(f"{path}:{path}" for path in paths)
        assert f"--container-mounts={mounts} --container-workdir" in text
