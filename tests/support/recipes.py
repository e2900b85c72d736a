"""The recipes of a backend, by their text: composing each takes every test process half a second."""

from __future__ import annotations

from xp.composition import ROOT, options


def recipes_of(backend: str) -> list[str]:
    texts = {name: (ROOT / "recipes" / f"{name}.yaml").read_text() for name in options("recipes")}
    return [name for name, text in texts.items() if f"override /backend: {backend}\n" in text]
