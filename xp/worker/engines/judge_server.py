"""Serves a judge on accelerators of its own while a stage's program runs on the others.

    python -m xp.worker.engines.judge_server <judge.json> -m <module> <argument>...

The exit code is the program's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from xp.lib import processes
from xp.lib.atomic import write_atomically
from xp.lib.models.clock import asks_clock, with_date
from xp.lib.reading import config_of
from xp.spec.judge import SERVER_KEY, SERVER_URL
from xp.worker.engines import server, sglang
from xp.worker.engines.config import JudgeServer
from xp.worker.program import run_stage


@contextmanager
def serving_judge(config: JudgeServer, python: str = sys.executable) -> Iterator[dict[str, str]]:
    """Context manager: yields the variables of the processes that play episodes.

    Args:
        config: the server.
        python: the interpreter with the engine.

    Raises:
        XpError: (RUNTIME) the server did not start, or the machine has too few accelerators; (ENGINE) it ended or
            hung during use.
    """
    settings = config.server
    log = Path(config.log)
    devices, judge_devices = server.split_devices(
        config.trainer_accelerators, settings.num_accelerators
    )
    settings = replace(settings, arguments=(*settings.arguments, *_dated_template(config)))
    if config.is_sglang:
        running = sglang.running(
            settings.arguments, str(config.judge.serve), judge_devices, log, python
        )
    else:
        running = server.running(
            settings, str(config.judge.serve), judge_devices, log, python, config.judge.name
        )
    with running as served:
        yield {
            SERVER_URL: f"{served.url}/v1",
            SERVER_KEY: served.key,
            "CUDA_VISIBLE_DEVICES": devices,
        }


def _dated_template(config: JudgeServer) -> tuple[str, ...]:
    """Arguments with the file of a chat template that does not ask for the date any more, if the judge's does."""
    if config.date is not None:  # vLLM renders gpt-oss' prompts without a template.
        os.environ["VLLM_SYSTEM_START_DATE"] = config.date
    if not asks_clock(str(config.judge.serve), Path(), None, asks_hub=True):
        return ()
    from transformers import AutoTokenizer

    template = AutoTokenizer.from_pretrained(str(config.judge.serve)).chat_template
    file = Path(config.log).with_suffix(".jinja").absolute()
    write_atomically(file, with_date(template, config.date))
    return ("--chat-template", str(file))


def main(argv: Sequence[str]) -> None:
    """Runs a program beside the judge of a config file; raises SystemExit with the program's own code."""
    config = config_of(Path(argv[0]), JudgeServer.from_json)
    with serving_judge(config) as variables:
        program = processes.start(
            [sys.executable, *argv[1:]], config.launcher.grace_s, env={**os.environ, **variables}
        )
        try:
            code = program.wait()
        finally:
            processes.end(program)
        if code:
            raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
