"""The game behind the embedded default: small murder mysteries, generated from a split and an index, in pure Python."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from xp.envs.base import ToolSpec


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SUSPECTS: Final = _words(
    "Rose Victor Clara Hugo Agnes Edgar Violet Oscar Martha Felix Irene Walter"
)
ROOMS: Final = _words("library cellar attic kitchen ballroom study garden chapel stable gallery")
WEAPONS: Final = _words("rope dagger pistol candlestick wrench hatchet poker hammer razor cleaver")
ALIBIS: Final = ("opera", "theatre", "club", "races", "harbour", "hospital")

CASE_SIZE: Final = 3
"""Suspects, rooms and weapons of one case."""
SOLVED: Final = 1.0
"""Reward of an accusation that is right in all three parts."""
PER_PART: Final = 0.2
"""Reward of each right part of any other accusation."""
HELD_OUT_BYTE: Final = 32
"""A case whose digest begins with a smaller byte belongs to `test`, any other to the other splits: 1 in 8."""


@dataclass(frozen=True)
class Case:
    """Who did what where. All tuples have CASE_SIZE entries; `weapons[i]` lies in `rooms[i]`."""

    suspects: tuple[str, ...]
    rooms: tuple[str, ...]
    weapons: tuple[str, ...]
    alibis: tuple[str, ...]
    """Place of each suspect; the culprit's is never revealed."""
    culprit: str
    room: str

    @property
    def weapon(self) -> str:
        return self.weapons[self.rooms.index(self.room)]

    def solution(self) -> list[tuple[str, dict[str, str]]]:
        """Tools and arguments of a detective who asks in the order of the prompt until nothing is open."""
        suspects = self.suspects[: self.suspects.index(self.culprit) + 1]
        rooms = self.rooms[: self.rooms.index(self.room) + 1]
        accusation = {"suspect": self.culprit, "weapon": self.weapon, "room": self.room}
        return [
            *(("interview", {"suspect": suspect}) for suspect in suspects),
            *(("search", {"room": room}) for room in rooms),
            ("accuse", accusation),
        ]

    @property
    def prompt(self) -> str:
        """Text that the detective reads; nothing in it depends on the answer."""
        return (
            "A guest was murdered at the manor.\n"
            f"Suspects: {', '.join(self.suspects)}.\n"
            f"Rooms: {', '.join(self.rooms)}.\n"
            "Find out who did it, with which weapon and in which room, then accuse."
        )


def generate_case(split: str, index: int) -> Case:
    """The case at a position of a split, the same on every machine.

    A case belongs to `test` or to the others by its own digest, so that no case can occur in both.
    """
    rng = random.Random(f"{split}:{index}")
    while True:
        case = _draw(rng)
        if _is_held_out(case) == (split == "test"):
            return case


def _draw(rng: random.Random) -> Case:
    suspects, rooms, weapons = (
        tuple(rng.sample(names, CASE_SIZE)) for names in (SUSPECTS, ROOMS, WEAPONS)
    )
    alibis = tuple(rng.choice(ALIBIS) for _ in suspects)
    return Case(
        suspects, rooms, weapons, alibis, culprit=rng.choice(suspects), room=rng.choice(rooms)
    )


def _is_held_out(case: Case) -> bool:
    # Without the alibis: two cases that differ in small talk only are the same riddle.
    riddle = "|".join((*case.suspects, *case.rooms, *case.weapons, case.culprit, case.room))
    return hashlib.sha256(riddle.encode()).digest()[0] < HELD_OUT_BYTE


@dataclass
class Game:
    """One attempt at a case. Each method is a tool and gives back what the detective reads."""

    case: Case
    is_over: bool = field(default=False, init=False)
    reward: float = field(default=0.0, init=False)
    """Reward of the last call: 0 for an investigation, the score for the accusation."""

    def interview(self, suspect: str) -> str:
        if suspect not in self.case.suspects:
            return "Nobody of that name is here."
        if suspect == self.case.culprit:
            return f"{suspect} has no alibi."
        return f"{suspect} was at the {self.case.alibis[self.case.suspects.index(suspect)]} all evening."

    def search(self, room: str) -> str:
        if room not in self.case.rooms:
            return "There is no such room here."
        weapon = self.case.weapons[self.case.rooms.index(room)]
        if room == self.case.room:
            return f"There is blood on the {weapon}."
        return f"There is a {weapon} here."

    def accuse(self, suspect: str, weapon: str, room: str) -> str:
        case = self.case
        num_right = sum((suspect == case.culprit, weapon == case.weapon, room == case.room))
        self.is_over = True
        self.reward = SOLVED if num_right == CASE_SIZE else PER_PART * num_right
        if num_right == CASE_SIZE:
            return "The case is solved."
        return "The true culprit walks free."


def _tool(name: str, description: str, arguments: Sequence[str]) -> ToolSpec:
    parameters: dict[str, Any] = {
        "properties": {argument: {"type": "string"} for argument in arguments},
        "required": list(arguments),
        "type": "object",
    }
    return ToolSpec(name, description, parameters)


TOOLS: Final = (
    _tool("accuse", "End the case.", ("suspect", "weapon", "room")),
    _tool("interview", "Ask for an alibi.", ("suspect",)),
    _tool("search", "Look for a weapon.", ("room",)),
)
"""Tools as the environment server declares them, sorted by name."""
