"""The launcher of a run, and the hardware that it provides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from xp.lib.codec import IN_JOB
from xp.lib.plugins import Kind
from xp.lib.text import word_list
from xp.spec.open_name import OpenName, checked_options
from xp.spec.section import (
    MOST_COUNT,
    MOST_SIZE,
    Count,
    CountOrZero,
    ImageName,
    LocalPath,
    Name,
    NotNegative,
    OpenKeys,
    Seconds,
    Section,
    Size,
    check_http_url,
    check_plain_url,
)


class TokenPrices(Section):
    """Prices of a service that counts tokens, in US dollars for a million of them."""

    prompt: NotNegative
    """Tokens that the model reads: prompts of samples, and forward passes."""
    sampled: NotNegative
    trained: NotNegative
    """Tokens of forward and backward passes."""

    def usd(self, prompt: float, sampled: float, trained: float) -> float:
        """Price of these numbers of tokens, in US dollars."""
        each = prompt * self.prompt + sampled * self.sampled + trained * self.trained
        return each / 1e6


class Hardware(Section):
    """Machine that the job needs; the launcher says where it is."""

    name: Name
    accelerator: str
    """`cpu`, or the accelerator's name."""
    accelerators_per_node: Annotated[int, Field(ge=0, le=MOST_SIZE)]
    accelerator_memory_gb: Annotated[float, Field(ge=0, le=MOST_COUNT)]
    """Memory of one accelerator in units of 2^30 bytes (nvidia-smi's MiB / 1024), as in its product name."""
    num_nodes: Size
    num_cpus: Size
    """CPU cores per node."""
    memory_gb: Annotated[float, Field(gt=0, le=MOST_COUNT)]
    """Memory of the host per node, in GB."""
    usd_per_hour: Annotated[float, Field(gt=0, le=MOST_COUNT)] | None
    """Price of all nodes together for an hour, for the plan. None means that no price is shown."""
    usd_per_million_tokens: TokenPrices | None
    """Prices of a service that trains and counts tokens, for the plan and `training.budget_usd`. None means that they
    are not known."""


class LauncherName(StrEnum):
    LOCAL = "local"
    """This machine."""
    RAY = "ray"
    """Ray Jobs on a cluster whose nodes see the outputs root."""
    SLURM = "slurm"
    """sbatch, on a cluster whose nodes see the outputs root."""
    MODAL = "modal"
    """Modal functions; the outputs root is a volume there."""
    SKYPILOT = "skypilot"
    """SkyPilot's managed jobs on a cloud or on Kubernetes; the outputs root is a bucket or a volume."""
    KUBERNETES = "kubernetes"
    """A Job, a RayJob or a JobSet on a cluster; the outputs root is a persistent volume claim."""

    @property
    def is_elsewhere(self) -> bool:
        """Returns whether jobs run without access to this machine's disk and interpreters."""
        return self in (LauncherName.MODAL, LauncherName.SKYPILOT, LauncherName.KUBERNETES)


class Container(StrEnum):
    PYXIS = "pyxis"
    """Slurm's plugin: `srun --container-image`."""
    APPTAINER = "apptainer"
    """`apptainer exec`, a program on the nodes."""


class LauncherSpec(Section):
    """Place of the run. A field of another launcher is null: one that would be ignored is refused."""

    name: Annotated[LauncherName | str, OpenName(Kind.LAUNCHER, LauncherName)]
    options: OpenKeys
    """Fields of launcher=skypilot, of launcher=kubernetes or of a plugin's launcher, as its own schema has them."""
    grace_s: Seconds
    """Seconds between SIGTERM and SIGKILL when a run is stopped."""
    max_restarts: CountOrZero
    """New attempts after an infrastructure failure; never after a fault of the user's."""
    detach: bool
    """True submits all stages and exits; `python -m xp runs` then follows the run. Not for local."""
    secrets_file: LocalPath | None
    """Ray, Slurm: JSON file (variable -> value, mode 0600) that is on the nodes already. None means that xp writes one
    per stage below ~/.xp/secrets, which the nodes must see, and deletes it after the run."""
    address: str | None
    """Ray: the dashboard's URL. None means this machine's, http://127.0.0.1:8265, or the one that start_head starts."""
    start_head: bool | None
    """Ray: start a cluster of this machine for the run, on 127.0.0.1 alone, and stop it at the end."""
    partition: str | None
    """Slurm. None means the cluster's default."""
    prepare_partition: str | None
    """Slurm: partition of stages without accelerators, such as one whose nodes reach the network. None means
    `partition`."""
    setup: tuple[str, ...] | None
    """Slurm: lines of shell at the beginning of each job, such as `module load cuda`."""
    account: str | None
    """Slurm: account that is charged. None means the user's default."""
    time_limit_s: Annotated[int, Field(ge=60, le=MOST_COUNT)] | None
    """Slurm: time limit of one stage's job, in seconds. None means the partition's."""
    gres: str | None
    """Slurm: name of a GPU in --gres: `gpu`, `gpu:a100`."""
    requeue: bool | None
    """Slurm: a stage that is preempted, or reaches its time limit, is queued again and resumes from its checkpoint."""
    array: bool | None
    """Slurm: a sweep that is left to the cluster is a job array, one task per run."""
    array_at_once: Count | None
    """Slurm: largest number of an array's tasks that run at the same time. None means no limit."""
    container: Container | None
    """Slurm: program that starts a stage in `backend.runtime.image`. None means that stages run in the nodes' own
    Python."""
    sbatch: dict[str, str] | None
    """Slurm: further long options of sbatch, without dashes (`qos: high`)."""
    app: Name | None
    """Modal: prefix of the app's name; the names of the run and the stage are appended."""
    volume: Name | None
    """Modal: the volume that is the outputs root."""
    base_image: ImageName | None
    """Modal: image below a lock's packages, where a stage has accelerators (compilers at run time want CUDA's)."""
    timeout_s: Annotated[int, Field(ge=60, le=86400)] | None
    """Modal: time limit of one stage, in seconds."""
    secret_name: Name | None
    """Modal: the Modal Secret that holds the values of the run's secrets; None where a run has none."""

    @field_validator("options", mode="after")
    @classmethod
    def _options_of_the_launcher(
        cls, options: dict[str, Any], info: ValidationInfo
    ) -> dict[str, Any]:
        if "name" not in info.data or info.context == IN_JOB:
            return options
        return checked_options(Kind.LAUNCHER, info.data["name"], options)

    def faults(self) -> Iterator[str]:
        for field, owners in OWNERS.items():
            value = getattr(self, field)
            if value is not None and self.name not in owners:
                whose = " and ".join(owner.value for owner in owners)
                yield f"{field} belongs to launcher={whose}; with launcher={self.name} it must be null"
            if value is None and self.name in owners and field in REQUIRED:
                yield f"{field} needs a value with launcher={self.name}"
        if self.name is LauncherName.LOCAL and self.detach:
            yield "detach: launcher=local runs the stages itself; use nohup, or another launcher"
        if self.array and not self.detach:
            yield "array: needs a detached run; set detach=true too"
        if self.array_at_once is not None and not self.array:
            yield "array_at_once: limits a job array; set array=true too"
        if "@" in check_plain_url(self.address or ""):
            check_http_url("address", self.address or "")
        if self.start_head and self.address is not None:
            yield "address: not allowed with start_head=true, which starts its own cluster; set one of the two"
        if self.start_head and self.detach:
            yield "detach: the cluster of start_head ends with the run; set the address of another cluster"


_SLURM = word_list("""
    partition prepare_partition setup account time_limit_s gres requeue array array_at_once container sbatch
""")
OWNERS: Mapping[str, tuple[LauncherName, ...]] = {
    "secrets_file": (LauncherName.RAY, LauncherName.SLURM),
    **dict.fromkeys(("address", "start_head"), (LauncherName.RAY,)),
    **dict.fromkeys(_SLURM, (LauncherName.SLURM,)),
    **dict.fromkeys(
        ("app", "volume", "base_image", "timeout_s", "secret_name"), (LauncherName.MODAL,)
    ),
}
"""Field -> launchers that have it, for fields that not every launcher has."""
REQUIRED = word_list("""
    start_head gres requeue array setup sbatch app volume base_image timeout_s
""")
"""Fields that their launchers always have."""
