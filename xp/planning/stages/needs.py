"""RunSpec -> the needs of a stage's process: resources, variables and Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xp.job import Resources, Runtime
from xp.runtimes import Checkouts, RuntimeLock, checkouts_of, locks
from xp.spec import Attention, EngineName, LauncherName, RunSpec, Strategy

QUIET = {
    # No telemetry, no update checks, no unnecessary look-ups on the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment variables of every stage."""


def starts_own_ray(spec: RunSpec) -> bool:
    """Returns whether a stage on one machine starts its own Ray, closed to other users (xp.lib.ray_token)."""
    is_users = spec.launcher.name is LauncherName.RAY and not spec.launcher.start_head
    return spec.hardware.num_nodes == 1 and not is_users


def cpu_environment(num_threads: int) -> dict[str, str]:
    """Variables that limit the threads of a process on the CPU.

    OpenMP's threads spin while they wait for each other; if other processes use the cores, a step then takes several
    times as long.
    """
    return {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def cpu_engine(spec: RunSpec) -> dict[str, str]:
    """Variables for vLLM on a CPU, with which it needs no compiler and reserves no core."""
    is_here = spec.hardware.accelerator == "cpu" and spec.backend.engine.name is EngineName.VLLM
    return {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"} if is_here else {}


def trainer_resources(spec: RunSpec) -> Resources:
    """Resources of the whole hardware option."""
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
    """Resources of a stage without accelerators."""
    hardware = spec.hardware
    return Resources("cpu", 0, 1, num_cpus=min(hardware.num_cpus, 4), memory_gb=min(hardware.memory_gb, 8.0))


def runtime_lock(spec: RunSpec) -> RuntimeLock | None:
    """Lock of the trainer's Python; None if the spec names a Python, or the job runs in xp's own."""
    runtime, is_on_cpu = spec.backend.runtime, spec.hardware.accelerator == "cpu"
    if runtime.python is not None or runtime.project_env is not None or is_on_cpu:
        return None
    if spec.backend.parallel.strategy is Strategy.MEGATRON:  # SkyRL's Megatron and Slime come from checkouts or images
        return None
    lock = locks().get(spec.backend.name)
    return lock and replace(lock, has_flash=spec.backend.attention is Attention.FLASH)


def runtime_checkouts(spec: RunSpec) -> Checkouts | None:
    """Checkouts of the trainer; None if it is installed as packages."""
    backend = spec.backend
    return checkouts_of(backend.commits, backend.runtime.project_env, str(backend.parallel.strategy))


def trainer_runtime(spec: RunSpec, packages: Sequence[str], install: str | None = None) -> Runtime:
    """The trainer's Python; `install`: command that makes one, if not pip with the packages' names."""
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
    """Override that `install` needs to select this lock, if it is without FlashAttention."""
    is_left_out = lock.files != replace(lock, has_flash=True).files
    return (f"backend.attention={spec.backend.attention}",) if is_left_out else ()
