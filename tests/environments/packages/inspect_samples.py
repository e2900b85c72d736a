"""Tasks of inspect_ai as its documentation writes them: tools, choices, a dialogue, a judge, several scores."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import (
    Score,
    Target,
    accuracy,
    choice,
    includes,
    match,
    mean,
    model_graded_qa,
    scorer,
)
from inspect_ai.solver import (
    Generate,
    Solver,
    TaskState,
    generate,
    multiple_choice,
    solver,
    system_message,
    use_tools,
)
from inspect_ai.tool import Tool, ToolError, tool


@tool
def add() -> Tool:
    async def execute(x: int, y: int) -> int:
        """Adds two numbers.

        Args:
            x: The first.
            y: The second.
        """
        if x < 0:
            raise ToolError("negative numbers are not added")
        return x + y

    return execute


@task
def sums(size: int = 4) -> Task:
    return Task(
        dataset=[Sample(input=f"What is {n} + {n}?", target=str(2 * n)) for n in range(size)],
        solver=[system_message("Use the tool."), use_tools(add()), generate()],
        scorer=match(numeric=True),
    )


@task
def choices() -> Task:
    samples = [
        Sample(input="Which is a fruit?", choices=["stone", "apple", "chair"], target="B"),
        Sample(input="Which is blue?", choices=["the sky", "grass"], target="A"),
    ]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@task
def shuffled() -> Task:
    samples = [
        Sample(input=f"Which is {n}?", choices=[str(n + k) for k in range(4)], target="A")
        for n in range(20)
    ]
    dataset = MemoryDataset(samples)
    dataset.shuffle()
    dataset.shuffle_choices()
    return Task(dataset=dataset, solver=multiple_choice(), scorer=choice())


@solver
def twenty_questions(most: int) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for _ in range(most):
            state = await generate(state)
            if state.target.text in state.output.completion:
                break
            state.messages.append(ChatMessageUser(content="No. Guess again."))
        return state

    return solve


@scorer(metrics={"found": [mean()], "brief": [mean()]})
def guessed():
    async def score(state: TaskState, target: Target) -> Score:
        is_found = target.text in state.output.completion
        return Score(value={"found": "C" if is_found else "I", "brief": 1 / len(state.messages)})

    return score


@task
def dialogue() -> Task:
    return Task(
        dataset=[Sample(input="Guess my animal.", target="owl")],
        solver=twenty_questions(3),
        scorer=[guessed(), includes()],
    )


@task
def judged() -> Task:
    return Task(
        dataset=[Sample(input="Why is the sky blue?", target="Rayleigh scattering")],
        scorer=model_graded_qa(model_role="grader"),
    )


@scorer(metrics=[accuracy()])
def broken():
    async def score(state: TaskState, target: Target) -> Score:
        del target
        if state.output.completion == "words":
            return Score(value="rather good")
        raise RuntimeError("the scorer is broken")

    return score


@task
def breaks() -> Task:
    return Task(dataset=[Sample(input="Say something.", target="x")], scorer=broken())


@task
def in_a_sandbox() -> Task:
    return Task(
        dataset=[Sample(input="List the files.", target="x")], scorer=includes(), sandbox="local"
    )
