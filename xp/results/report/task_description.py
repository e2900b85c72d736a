"""Description of a recorded episode's task, asked of its environment, which is started for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xp.envs.base import EnvFault, Task
from xp.envs.config import load_provider
from xp.episode.mixture import description
from xp.errors import ExitCode, XpError
from xp.planning.episode import episode_environ
from xp.planning.stages import prepare_config
from xp.results.report.recipe import trusted_spec
from xp.results.report.web import page_text


def described_task(run: Path, record: Mapping[str, Any]) -> str:
    """The environment's description of the task, with the right answer, as JSON text for a page.

    No file of a run has it, so the environment is asked again.

    Args:
        run: directory of the run.
        record: record of the episode.

    Raises:
        XpError: the run was begun elsewhere, so that its environment is not started, or the environment fails.
    """
    spec = trusted_spec(run, "its environment is not started")
    member = prepare_config(spec).members.get(str(record["env"]))
    if member is None:
        raise XpError(f"{run.name} has no environment {record['env']}", ExitCode.RUN_DIR)
    provider = load_provider(member.env, episode_environ(spec))
    try:
        answer = description(provider, Task(record["env"], record["split"], record["index"]))
    except EnvFault as error:
        raise XpError(
            f"the environment does not describe the task: {error}", ExitCode.ENVIRONMENT
        ) from error
    finally:
        provider.close()
    return page_text(json.dumps(answer, ensure_ascii=False, indent=2))
