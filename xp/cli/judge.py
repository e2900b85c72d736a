"""`python -m xp env check --labels FILE`: agreement of a judge with a person, before a run pays for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from pydantic import BaseModel

from xp.cli.table import print_json
from xp.envs.judges import COST, JudgeFault, total_usage
from xp.episode.judge import JUDGE, Judge, JudgeLog, rubric_of
from xp.errors import ExitCode, XpError
from xp.lib.reading import lines_of
from xp.lib.text import counted
from xp.planning.episode import episode_config, episode_environ
from xp.spec import RunSpec
from xp.spec.judge import JudgeScoring, JudgeSpec


class LabelledRow(BaseModel, extra="allow"):
    """Answers to one task, with a person's labels: the larger the better; further fields may have its rubric."""

    prompt: str
    answers: list[str]
    labels: list[float]


@dataclass(frozen=True)
class Agreement:
    """Result of a check."""

    rows: int
    """Rows that the judge scored."""
    failed: int
    """Rows without a verdict, which would be void in a run."""
    pairs: int
    """Pairs of answers with different labels."""
    agreement: float | None
    """Share of these pairs that the judge orders as the person does; a tie of the judge counts half."""
    order_decides: float | None
    """Pairwise: share of pairs whose winner depends on the order of the two."""
    usage: Mapping[str, float]
    """Tokens read and written, and their cost if it is known."""
    stopped: str | None
    """Limit that ended the check."""


def check_judge(spec: RunSpec, labels: Path, budget_usd: float | None, *, as_json: bool) -> int:
    """Scores labelled rows; the exit code is ENVIRONMENT if the judge gave no verdict on any of them."""
    config = episode_config(spec)
    judged = {name: member for name, member in config.members.items() if member.judge is not None}
    if len(judged) != 1:
        raise XpError(f"--labels needs one environment with env.judge; {len(judged)} have one")
    ((name, member),) = judged.items()
    assert member.judge is not None  # selected above
    rows = labelled_rows(labels, member.judge)
    if budget_usd is not None and member.judge.model.price_in is None:
        raise XpError("--budget-usd needs the prices: set env.judge.model.price_in and price_out")
    log = JudgeLog(Path(spec.outputs, JUDGE), Path(spec.outputs, JUDGE).glob("*.jsonl"))
    judge = Judge(member.judge, episode_environ(spec), lambda _: {}, log, member.dialect)
    try:
        result = measured(judge, rows, budget_usd)
    finally:
        judge.close()
    if as_json:
        print_json(result)
    else:
        _show(name, member.judge, result, spec.training.group_size)
    if result.rows:
        return ExitCode.OK
    return ExitCode.ENVIRONMENT


def labelled_rows(file: Path, config: JudgeSpec) -> list[tuple[LabelledRow, str]]:
    """The rows, each with its rubric; raises XpError that names the first illegal one."""
    least = 1 if config.scoring is JudgeScoring.POINTWISE else 2
    rows = []
    for number, line in enumerate(lines_of(file, ExitCode.CONFIG), start=1):
        try:
            row = LabelledRow.model_validate_json(line)
            if not len(row.answers) == len(row.labels) >= least:
                raise ValueError
            rows.append((row, rubric_of(config.rubric, row.model_extra or {})))
        except (ValueError, JudgeFault) as error:
            expected = f"{{prompt: text, answers: [{least} or more texts], labels: [a number for each, larger is better]}}"
            reason = f" ({error})" if isinstance(error, JudgeFault) else ""
            raise XpError(
                f"{file}:{number}: expected {expected}, got {line[:100]!r}{reason}"
            ) from None
    if not rows:
        raise XpError(f"{file} has no rows")
    return rows


def measured(
    judge: Judge, rows: Sequence[tuple[LabelledRow, str]], budget_usd: float | None
) -> Agreement:
    """Scores the rows in order, and stops when the budget is spent.

    Pairs are those of one row; a pointwise judge, whose scores do not depend on the row, is measured on all pairs.
    """
    usage: dict[str, float] = {}
    groups: list[list[tuple[float, float]]] = []
    turned: list[float] = []
    failed = 0
    stopped = None
    for number, (row, rubric) in enumerate(rows, start=1):
        if budget_usd is not None and usage and COST not in usage:
            raise XpError(
                "the endpoint reports no token usage, so the limit cannot be enforced; leave out --budget-usd"
            )
        if budget_usd is not None and usage.get(COST, 0.0) >= budget_usd:
            stopped = f"--budget-usd {budget_usd:g} is spent ({usage[COST]:.4f})"
            break
        try:
            scores = judge.score_answers(row.prompt, row.answers, rubric, f"labelled row {number}")
        except JudgeFault as fault:
            print(f"row {number}: {fault}", file=sys.stderr)
            usage = total_usage([usage, fault.usage])
            failed += 1
            continue
        usage = total_usage([usage, scores.judges])
        groups.append(list(zip(row.labels, scores.values, strict=True)))
        turned += [
            entry["judge_order_decides"]
            for entry in scores.entries
            if "judge_order_decides" in entry
        ]
    if judge.config.scoring is JudgeScoring.POINTWISE:
        groups = [[label for group in groups for label in group]]
    verdicts = [
        0.5 if score == other_score else float((score > other_score) == (label > other_label))
        for group in groups
        for (label, score), (other_label, other_score) in combinations(group, 2)
        if label != other_label
    ]
    num_rows = len(rows) if stopped is None else number - 1
    share = sum(verdicts) / len(verdicts) if verdicts else None
    order = sum(turned) / len(turned) if turned else None
    return Agreement(num_rows - failed, failed, len(verdicts), share, order, usage, stopped)


def _show(name: str, config: JudgeSpec, result: Agreement, group_size: int) -> None:
    rows = f"{counted(result.rows, 'row')} judged, {result.failed} without a verdict"
    print(f"{name}: {config.model.name}, {config.scoring}: {rows}")
    if result.agreement is not None:
        print(
            f"agreement with the labels: {result.agreement:.0%} of {counted(result.pairs, 'pair')} (0.5 is chance)"
        )
    if result.order_decides is not None:
        print(f"the order of two answers decided {result.order_decides:.0%} of the comparisons")
    read, written = (result.usage.get(key, 0.0) for key in ("prompt_tokens", "completion_tokens"))
    cost = ", price unknown" if read else ""
    if COST in result.usage:
        cost = f", {result.usage[COST]:.4f} US dollars"
    print(f"tokens: {read:,.0f} read, {written:,.0f} written{cost}")
    if config.scoring is JudgeScoring.PAIRWISE:
        print(
            f"a group of {group_size} needs {group_size * (group_size - 1)} requests: every two answers in both orders"
        )
    if result.stopped is not None:
        print(f"stopped: {result.stopped}")
