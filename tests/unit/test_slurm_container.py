"""Words that put a batch job's stage into a container."""

from __future__ import annotations

import pytest

from xp.launchers.slurm_container import apptainer_words, srun_options

ROOT = ["/shared/out", "/home/me/.xp/secrets/r"]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("slimerl/slime:nightly", "slimerl/slime:nightly"),
        ("nvcr.io/nvidia/pytorch:26.01-py3", "nvcr.io#nvidia/pytorch:26.01-py3"),
        ("localhost:5000/trl:1", "localhost:5000#trl:1"),
        ("/images/trl.sqsh", "/images/trl.sqsh"),
    ],
)
def test_pyxis_is_told_the_image_by_enroots_name(image: str, named: str) -> None:
    options = srun_options(image, ROOT, "/shared/out")
    assert f"--container-image={named}" in options
    assert "--container-mounts=/shared/out:/shared/out,/home/me/.xp/secrets/r:/home/me/.xp/secrets/r" in options


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("slimerl/slime:nightly", "docker://slimerl/slime:nightly"),
        ("oras://registry/trl:1", "oras://registry/trl:1"),
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
