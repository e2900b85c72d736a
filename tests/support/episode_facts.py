"""Facts of a played episode."""

from __future__ import annotations

from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus


def played(
    task: str, reward: float | None, *, env: str = "a", steps: tuple[float, ...] = ()
) -> EpisodeFacts:
    status = EpisodeStatus.VOID if reward is None else EpisodeStatus.FINISHED
    return EpisodeFacts(
        env,
        task,
        EpisodeResult(status, reward, steps, num_turns=2, num_tool_calls=2, num_malformed=0),
        10,
    )


def logged(reward: float | None) -> EpisodeFacts:
    """An episode of one turn with five tokens of the policy after two of the prompt; None: void."""
    status = EpisodeStatus.VOID if reward is None else EpisodeStatus.FINISHED
    reason = "down" if reward is None else None
    outcome = EpisodeResult(status, reward, (), 1, 1, 0, reason)
    return EpisodeFacts("a", "a/train/0", outcome, 5, 2)
