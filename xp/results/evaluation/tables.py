"""Results of evaluations as a table for a terminal, in Markdown, or in LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xp.lib.terminal import markdown_cell, shown
from xp.results.evaluation.settings import BEST, Tasks

Result = Mapping[str, Any]
"""The content of an eval.json."""
HEAD: Final = ("environment", "model", "episodes", "reward", "95 % interval", "passes", "void")
_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One line for each environment of each evaluation, and one for a mixture as a whole."""
    return [row for result in results for row in _rows(result)]


def markdown(results: Sequence[Result]) -> str:
    """Table in Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *rows(results)]
    return "".join(f"| {' | '.join(map(markdown_cell, line))} |\n" for line in lines)


def latex(results: Sequence[Result]) -> str:
    """LaTeX tabular in the style of booktabs."""
    lines = [" & ".join(map(_escaped, line)) + r" \\" for line in rows(results)]
    head = " & ".join(map(_escaped, HEAD)) + r" \\"
    body = "\n".join(lines)
    return f"\\begin{{tabular}}{{llrrlrr}}\n\\toprule\n{head}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def notes(result: Result) -> Iterator[str]:
    """Remarks on the results of one evaluation."""
    name = f"{result['env']} / {result['model']['name']}"
    if result["status"] != "finished":
        yield f"{name}: {result['num_played']} of {result['num_asked']} episodes: {result['stopped']}"
    playing = result.get("playing", {})
    if playing.get("temperature") == 0 and playing["samples_per_task"] > 1:
        yield f"{name}: at temperature 0 the samples of a task are one answer; set evaluation.samples_per_task=1"
    if result["model"]["name"].endswith(f"@{BEST}") and playing.get("tasks") == Tasks.HELD_OUT:
        yield f"{name}: this checkpoint was chosen by its reward on held-out tasks; other tasks show less, as a rule"
    for env, figures in result["environments"].items():
        where = name if len(result["environments"]) == 1 else env
        yield from (f"{where}: {line}" for line in _notes(figures))
    used = result["usage"]
    if used["cost_usd"] is not None:
        tokens = f"{used['prompt_tokens']:,} tokens read and {used['completion_tokens']:,} written"
        yield f"{name}: {tokens} for {used['cost_usd']:.4f} US dollars"
    judges = used.get("judges")
    if judges:
        price = ", price unknown"
        if "cost_usd" in judges:
            price = f" for {judges['cost_usd']:.4f} US dollars"
        read = judges["prompt_tokens"]
        written = judges["completion_tokens"]
        yield f"{name}: judges: {read:,.0f} tokens read and {written:,.0f} written{price}"


def _notes(figures: Mapping[str, Any]) -> Iterator[str]:
    if len(figures.get("pass_at_k", ())) > 1:
        chances = [f"{k}: {estimate['value']:.0%}" for k, estimate in figures["pass_at_k"].items()]
        always = [f"{k}: {estimate['value']:.0%}" for k, estimate in figures["pass_hat_k"].items()]
        yield f"one of k passes (pass@k)  {', '.join(chances)}"
        yield f"all of k pass (pass^k)    {', '.join(always)}"
    if figures.get("bootstrap_differs"):
        low, high = figures["bootstrap"]
        yield f"resampling tasks gives another interval of the reward: {low:.3f} to {high:.3f}"
    if figures["reward"] is None:
        yield "every episode is void: nothing is known of the reward"
    elif figures["reward"].get("low") is None:
        reason = "all tasks have the same reward"
        if figures["num_tasks"] == 1:
            reason = "one task says nothing about others"
        yield f"no interval of the reward: {reason}"
    late = figures.get("timed_out")
    if late:
        yield f"{late:.0f} answers count 0, since their grader did not end within its limit"
    bounds = figures.get("void_bounds")
    if bounds is not None:
        of = "the rewards that were seen"
        if bounds["of"] == "rule":
            of = "the limits of its rule and grader"
        between = f"between {bounds['low']:.3f} and {bounds['high']:.3f}"
        yield f"{figures['num_void']} void; with their rewards the mean would be {between}, by {of}"


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    envs = result["environments"]
    for env, figures in envs.items():
        yield _row(env if len(envs) > 1 else result["env"], result["model"]["name"], figures)
    if len(envs) > 1:
        yield _row(f"{result['env']} (all)", result["model"]["name"], result["summary"])


def _row(env: str, model: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    reward = figures["reward"]
    passes = figures["passes"]
    interval = "-"
    if reward and reward.get("low") is not None:
        interval = f"{reward['low']:.3f} to {reward['high']:.3f}"
    return (
        env,
        model,
        f"{figures['num_episodes']}",
        "-" if reward is None else f"{reward['value']:.3f}",
        interval,
        "-" if passes is None else f"{passes['value']:.1%}",
        str(figures["num_void"]),
    )


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in shown(text))
