"""RunSpec -> what a stage's process needs of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xp.job import Resources, Runtime
from xp.runtime_checkouts import Checkouts, checkouts_of
from xp.runtime_locks import RuntimeLock, locks
from xp.spec import Attention, EngineName, LauncherName, RunSpec, Strategy

QUIET = {
    # No telemetry, no update checks, no hub look-ups that nobody asked for.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment of every stage."""


def starts_own_ray(spec: RunSpec) -> bool:
    """True if a stage on one machine starts a Ray of its own there, which is closed to others (xp.security.own_ray)."""
    is_users = spec.launcher.name is LauncherName.RAY and not spec.launcher.start_head
    return spec.hardware.num_nodes == 1 and not is_users


def cpu_environment(num_threads: int) -> dict[str, str]:
    """Variables that limit the threads of a process that computes on the CPU.

    OpenMP's threads spin while they wait for each other; when anything else runs on the cores, a step then takes
    several times as long (docs/results.md).
    """
    return {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def cpu_engine(spec: RunSpec) -> dict[str, str]:
    """Variables for vLLM on a CPU: needs no compiler, reserves no core."""
    is_here = spec.hardware.accelerator == "cpu" and spec.backend.engine.name is EngineName.VLLM
    return {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"} if is_here else {}


def trainer_resources(spec: RunSpec) -> Resources:
    """All of the hardware option."""
    hardware = spec.hardware
    return Resources(
        accelerator=hardware.accelerator,
        # On a CPU, accelerators_per_node counts processes.
        num_accelerators=0 if hardware.accelerator == "cpu" else hardware.accelerators_per_node,
        num_nodes=hardware.num_nodes,
        num_cpus=hardware.num_cpus,
        memory_gb=hardware.memory_gb,
    )


def host_resources(spec: RunSpec) -> Resources:
    """A stage that needs no accelerator."""
    hardware = spec.hardware
    return Resources("cpu", 0, 1, num_cpus=min(hardware.num_cpus, 4), memory_gb=min(hardware.memory_gb, 8.0))


def runtime_lock(spec: RunSpec) -> RuntimeLock | None:
    """The lock of the trainer's Python; None where the spec names a Python, or xp's own runs the job."""
    runtime, is_on_cpu = spec.backend.runtime, spec.hardware.accelerator == "cpu"
    if runtime.python is not None or runtime.project_env is not None or is_on_cpu:
        return None
    if spec.backend.parallel.strategy is Strategy.MEGATRON:  # SkyRL's Megatron and Slime come from checkouts or images
        return None
    lock = locks().get(spec.backend.name)
    return lock and replace(lock, has_flash=spec.backend.attention is Attention.FLASH)


def runtime_checkouts(spec: RunSpec) -> Checkouts | None:
    """The checkouts that the trainer comes as; None where it comes as packages."""
    backend = spec.backend
    return checkouts_of(backend.commits, backend.runtime.project_env, str(backend.parallel.strategy))


def trainer_runtime(spec: RunSpec, packages: Sequence[str], install: str | None = None) -> Runtime:
    """The Python that holds the trainer; `install`: what makes one, where pip and the packages' names do not."""
    runtime = spec.backend.runtime
    lock = runtime_lock(spec)
    key = None if lock is None else lock.key
    sources = runtime_checkouts(spec)
    if install is None and sources is not None:
        strategy = [f"backend.parallel.strategy={spec.backend.parallel.strategy}"] if sources.extra else []
        install = " ".join(
            ["python -m xp install", f"backend={sources.name}", f"hardware={spec.hardware.name}", *strategy]
        )
    if install is None and lock is not None:
        words = (f"backend={spec.backend.name}", f"hardware={spec.hardware.name}", *_attention(spec, lock))
        install = f"python -m xp install {' '.join(words)}"
    return Runtime(
        python=runtime.python,
        project=runtime.project_env,
        image=runtime.image,
        image_checkouts=runtime.image_checkouts,
        lock=key,
        checkouts=None if sources is None else sources.key,
        packages=tuple(packages),
        install=install,
    )


def _attention(spec: RunSpec, lock: RuntimeLock) -> tuple[str, ...]:
    """The word that `install` needs to choose this lock, where FlashAttention is left out of it."""
    is_left_out = lock.files != replace(lock, has_flash=True).files
    return (f"backend.attention={spec.backend.attention}",) if is_left_out else ()
