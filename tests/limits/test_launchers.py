"""What a launcher's own programs do, shown by them: proofs of refusals."""

from __future__ import annotations

import inspect

import pytest


def test_ray_keeps_a_jobs_variables_in_plain_text() -> None:
    """A job's record, which anyone who reaches the cluster's address can read."""
    pytest.importorskip("ray.dashboard.modules.job.common")
    from ray.dashboard.modules.job.common import JobInfo
    from ray.job_submission import JobStatus

    variables = {"env_vars": {"KEY": "its value"}}
    record = JobInfo(status=JobStatus.PENDING, entrypoint="python", runtime_env=variables)
    assert "its value" in str(record.to_json())


def test_rays_symmetric_run_is_for_a_node_without_another_ray_and_passes_no_signal_on() -> None:
    """Why xp.execution.launchers.node.ray_cluster starts Ray itself, and SkyPilot's template does on its nodes."""
    module = pytest.importorskip("ray.scripts.symmetric_run")
    text = inspect.getsource(module)
    assert "if check_ray_already_started():" in text
    assert 'subprocess.run(["ray", "stop"])' in text  # of every Ray of this user on the node
    assert "signal" not in text
    failure = text[text.index("except subprocess.CalledProcessError") :]
    assert "sys.exit(1)" not in failure  # of a worker whose `ray start` failed
