"""What a launcher's own programs do, shown by them: proofs of refusals."""

from __future__ import annotations

import pytest


def test_ray_keeps_a_jobs_variables_in_plain_text() -> None:
    """A job's record, which anyone who reaches the cluster's address can read."""
    pytest.importorskip("ray.dashboard.modules.job.common")
    from ray.dashboard.modules.job.common import JobInfo
    from ray.job_submission import JobStatus

    variables = {"env_vars": {"KEY": "its value"}}
    record = JobInfo(status=JobStatus.PENDING, entrypoint="python", runtime_env=variables)
    assert "its value" in str(record.to_json())
