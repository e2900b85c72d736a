"""Checks that the model's chat template renders tools and tool results, if its tokenizer is on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from xp.checks.doctor.finding import Findings, Verdict, fault, ok, unknown
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import interpreter
from xp.lib.models.files import local_directory
from xp.lib.python_program import last_line
from xp.planning.episode import spec_in_job
from xp.planning.runtime import trainer_runtime
from xp.planning.stages import QUIET, task_set_place
from xp.spec import RunSpec
from xp.tasks.manifest import TABLE
from xp.worker.places import start_place

PROGRAM = "xp.tasks.template_check"


def chat_template(spec: RunSpec, outputs: Path) -> Findings:
    """Checks the template with the trainer's own transformers, offline."""
    directory = local_directory(start_place(spec), outputs, file="tokenizer_config.json")
    if directory is None:
        where = start_place(spec)
        yield unknown(
            "template",
            f"the tokenizer of {where} is not on this machine; it is checked when it is here",
        )
        return
    name = str(directory)
    try:
        python = interpreter(trainer_runtime(spec, ()))
    except XpError:
        yield unknown(
            "template", "not checked: the trainer's Python, which has transformers, is missing"
        )
        return
    words = ("-m", PROGRAM, name, *_prepared(spec, outputs))
    # A template of the model's may be longer than an argument can be.
    model = spec_in_job(spec).model.model_dump_json()
    try:
        line = last_line(python, words, {**QUIET, "HF_HUB_OFFLINE": "1"}, text=model)
    except subprocess.TimeoutExpired as late:
        message = f"{name}: the chat template renders a short dialogue for more than {late.timeout:g} s, so it may never end"
        fix = "read it (tokenizer_config.json, chat_template.jinja), and correct it or choose another model"
        yield fault(
            "template", f"{message}; {fix}; if only this machine is slow, try again", ExitCode.PLAN
        )
        return
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["?"])[-1]
        yield unknown("template", f"{python} could not read {name}: {reason}")
        return
    answer = json.loads(line)
    if answer["faults"]:
        yield fault("template", f"{name}: {'; '.join(answer['faults'])}", ExitCode.PLAN)
    else:
        yield ok("template", f"{name}: {answer['line']}")


def check_template_on_tasks(specs: Sequence[RunSpec]) -> None:
    """Prints how each model's template renders its prepared tasks; raises XpError(PLAN) if it leaves out tools."""
    findings = {
        str(finding): finding
        for spec in specs
        for finding in chat_template(spec, Path(spec.outputs))
    }
    faults = [finding for finding in findings.values() if finding.verdict is Verdict.FAULT]
    if faults:
        raise XpError(
            "\n".join(f"the task set is complete, and {finding.text}" for finding in faults),
            faults[0].code,
        )
    for line in findings:
        print(line, flush=True)


def _prepared(spec: RunSpec, outputs: Path) -> list[str]:
    """Path of the prepared task set, whose tools the template must render; empty if there is none."""
    task_set = outputs / task_set_place(spec)
    if (task_set / TABLE).is_file():
        return [str(task_set.absolute())]
    return []
