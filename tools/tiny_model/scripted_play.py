"""Mediocre detectives that play the mysteries by script: what the tiny model is warmed up on, and all that it is shown.

Every player asks in the order of the prompt and uses what it has found out; they differ in when they stop, and that is
what reinforcement learning has to change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from xp.envs.builtin.mystery import CASE_SIZE, WEAPONS, Case, Game


class Player(StrEnum):
    HASTY = "hasty"
    """Accuses after one question at most."""
    SLOPPY = "sloppy"
    """Asks one to three times and then guesses the rest."""
    DILIGENT = "diligent"
    """Asks until nothing is open."""


NUM_QUESTIONS: Final = {Player.HASTY: (0, 1), Player.SLOPPY: (1, 2, 3)}


@dataclass(frozen=True)
class Step:
    """A tool call and what came back."""

    tool: str
    arguments: dict[str, str]
    reply: str


@dataclass
class Notebook:
    """Knowledge of a detective about a case, and the steps that it took."""

    case: Case
    game: Game
    steps: list[Step] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    """Searched room -> weapon."""
    culprit: str | None = None
    room: str | None = None

    def interview(self, suspect: str) -> None:
        self._take("interview", {"suspect": suspect})
        if suspect == self.case.culprit:
            self.culprit = suspect
        else:
            self.cleared.add(suspect)

    def search(self, room: str) -> None:
        self._take("search", {"room": room})
        self.answers[room] = self.case.weapons[self.case.rooms.index(room)]
        if room == self.case.room:
            self.room = room

    def accuse(self, rng: random.Random) -> None:
        """Accuses by what is known, guesses the rest among what is not ruled out, and names the weapon seen last."""
        suspect = self.culprit or _any(rng, self.case.suspects, self.cleared)
        room = self.room or _any(rng, self.case.rooms, self.answers)
        if self.answers:
            weapon = list(self.answers.values())[-1]
        else:
            weapon = rng.choice(WEAPONS)
        self._take("accuse", {"suspect": suspect, "weapon": weapon, "room": room})

    def _take(self, tool: str, arguments: dict[str, str]) -> None:
        self.steps.append(Step(tool, arguments, getattr(self.game, tool)(**arguments)))


def play(case: Case, player: Player, rng: random.Random) -> list[Step]:
    """One episode of a scripted player; its last step is the accusation."""
    notebook = Notebook(case, Game(case))
    if player is Player.DILIGENT:
        _investigate(notebook)
    else:
        num_questions = rng.choice(NUM_QUESTIONS[player])
        num_interviews = rng.randint(0, num_questions)
        _investigate(notebook, num_interviews, num_questions - num_interviews)
    notebook.accuse(rng)
    return notebook.steps


def transcript(case: Case, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """An episode as chat messages, up to and with the last tool call."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": case.prompt}]
    for step in steps:
        call = {"type": "function", "function": {"name": step.tool, "arguments": step.arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": step.reply})
    return messages[:-1]


def _investigate(
    notebook: Notebook, num_interviews: int = CASE_SIZE, num_searches: int = CASE_SIZE
) -> None:
    """Asks the first suspects and searches the first rooms, as long as the answer is open."""
    for suspect in notebook.case.suspects[:num_interviews]:
        if notebook.culprit is None:
            notebook.interview(suspect)
    for room in notebook.case.rooms[:num_searches]:
        if notebook.room is None:
            notebook.search(room)


def _any(rng: random.Random, names: Sequence[str], excluded: Any) -> str:
    return rng.choice([name for name in names if name not in excluded])
