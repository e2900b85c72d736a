"""Ray for one job: a new cluster that ends with the job, or the cluster of RAY_ADDRESS; neither gets secrets.

A new cluster is closed to other users (xp.lib.private_ray), who could otherwise run code in it.

The processes of the job's own Ray inherit its environment, secrets included, and Ray does not store it. Those of an
existing Ray read secrets from a file (xp.lib.secrets.environment).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from xp.backends.skyrl.worker.engine_watch import EngineWatch, lost
from xp.errors import ExitCode, XpError
from xp.lib import private_ray
from xp.lib.secrets.environment import SECRETS_FILE
from xp.worker.engines.probe import is_lost_process

UPSTREAM_SECRETS = (
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_URI",
    "DAYTONA_API_KEY",
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
)
"""Secrets that SkyRL would copy into Ray's runtime environment, which Ray stores as plain text.

Its processes inherit them instead.
"""
VARIABLES = ("PYTHONPATH", SECRETS_FILE)
PREPARE = "xp.backends.skyrl.worker.process.prepare_process"
REHEARSE = "xp.backends.skyrl.worker.rehearsal.cpu_torch.prepare_process"
REHEARSAL_CPUS = 6
"""Number of CPUs in Ray's bookkeeping: for the trainer's task, each worker's share, and SkyRL's two registries."""
POLL_S = 0.5
CANCEL_DEADLINE_S = 4.0


def run_in_ray(
    cfg: Any, task: Callable[..., Any], arguments: tuple[Any, ...], *, num_workers: int | None
) -> Any:
    """Runs `task(cfg, *arguments)` in a Ray process, as SkyRL does, and waits for its result.

    Args:
        cfg: SkyRLTrainConfig.
        task: a function of an importable module.
        arguments: arguments without secrets.
        num_workers: number of pretended accelerators in a rehearsal. None means no rehearsal.

    Raises:
        XpError: the task's XpError; ENGINE if an engine or another process was lost; STAGE_FAILED with SkyRL's own
            error.
    """
    with running_ray(cfg, num_workers):
        return run_task(cfg, task, arguments)


@contextmanager
def running_ray(cfg: Any, num_workers: int | None) -> Iterator[None]:
    """Context manager of the job's Ray; arguments and errors as in `run_in_ray`."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _as_faults():
            _start(cfg, num_workers)
        signal.signal(signal.SIGTERM, handler)  # Ray's own ends its processes at once.
        yield
    finally:
        ray.shutdown()


def run_task(cfg: Any, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Runs a task in the Ray of this process, as `run_in_ray` does."""
    import ray

    with _as_faults(), EngineWatch(Path(cfg.trainer.log_path)) as watch:
        running = ray.remote(num_cpus=1, max_retries=0)(task).remote(cfg, *arguments)
        return _result(running, watch)


@contextmanager
def _as_faults() -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise _fault(error) from None


def _result(running: Any, watch: EngineWatch) -> Any:
    """Result of the task; if the job is stopped first, the task closes its sessions.

    Raises:
        XpError: (ENGINE) an engine hangs.
    """
    import ray

    try:
        while not watch.fault:
            ready, _ = ray.wait([running], timeout=POLL_S)
            if ready:
                return ray.get(running)
    except KeyboardInterrupt:
        _cancel(running)
        raise
    _cancel(running)
    raise lost(watch.fault)


def _start(cfg: Any, num_workers: int | None) -> None:
    """Starts Ray like SkyRL's initialize_ray, but without secrets in the runtime environment or another job's
    cluster."""
    import ray
    from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries
    from skyrl.train.utils.utils import prepare_runtime_environment

    given = prepare_runtime_environment(cfg)
    variables = {name: value for name, value in given.items() if name not in UPSTREAM_SECRETS}
    log = Path(cfg.trainer.log_path, f"workers-{time.strftime('%H%M%S')}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    # Read in the driver and in every worker: log files of SkyRL's workers and engines.
    variables["SKYRL_LOG_FILE"] = os.environ["SKYRL_LOG_FILE"] = str(log)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if joins(is_rehearsal=num_workers is not None):
        # Its processes inherit nothing from this one: they need the paths of the code and of the secrets file.
        variables |= {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        start = ray.init
    else:
        for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
            os.environ.pop(name, None)
        start = partial(private_ray.start, **_pretended(cfg, num_workers))
    hook = PREPARE if num_workers is None else REHEARSE
    start(runtime_env={"env_vars": variables, "worker_process_setup_hook": hook})
    sync_registries()


def joins(*, is_rehearsal: bool) -> bool:
    """Returns whether the job joins the cluster of RAY_ADDRESS; a rehearsal does so only on several nodes."""
    return bool(os.environ.get("RAY_ADDRESS")) and (
        not is_rehearsal or private_ray.PRETENDED_GPUS in os.environ
    )


def _pretended(cfg: Any, num_workers: int | None) -> dict[str, int]:
    if num_workers is None:
        return {}
    accelerators = num_workers
    if not cfg.trainer.placement.colocate_all:
        engine = cfg.generator.inference_engine
        accelerators += engine.num_engines * engine.tensor_parallel_size
    return {"num_gpus": accelerators, "num_cpus": REHEARSAL_CPUS + accelerators}


def _fault(error: BaseException) -> XpError:
    """The task's XpError; for other errors a general one, since SkyRL has printed the traceback."""
    cause = error
    while (wrapped := getattr(cause, "cause", None)) is not None:
        cause = wrapped
    if isinstance(cause, XpError):
        return XpError(str(cause), ExitCode(cause.code))
    if is_lost_process(cause):
        return lost(f"a process of SkyRL's has ended: {cause}")
    return XpError(f"SkyRL failed: {type(cause).__name__}: {cause}\n{error}", ExitCode.STAGE_FAILED)


def _cancel(running: Any) -> None:
    """Cancels the task, which closes its sessions; remaining processes are killed with Ray."""
    import ray

    with suppress(Exception, KeyboardInterrupt):
        ray.cancel(running)
        ray.wait([running], timeout=CANCEL_DEADLINE_S)
