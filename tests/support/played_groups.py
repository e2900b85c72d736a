"""Groups of episodes of one task, played and scored."""

from __future__ import annotations

from tests.support.scripts import ROW
from tests.support.sections import replace
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult


def play(mix: EnvironmentMixture, *texts: str) -> list[Episode]:
    """One episode of ROW's task for each text; the prompt is the session's own."""
    episodes = [mix.episode(replace(ROW, messages=())) for _ in texts]
    for episode, text in zip(episodes, texts, strict=True):
        episode.step(text)
        episode.settle()
    return episodes


def scored(mix: EnvironmentMixture, *texts: str) -> list[EpisodeResult]:
    episodes = play(mix, *texts)
    mix.score_group(episodes).result()
    return [episode.settle() for episode in episodes]
