"""Environments of a job's episodes: written as `episode.json` above the wall, read below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xp.lib.codec import JsonFile
from xp.spec.dialect import DialectName
from xp.spec.env import EnvMember
from xp.spec.model import Images


class EnvConfig(EnvMember):
    """One environment of the mixture as its provider and its episodes get it: names are resolved (`spec_in_job`)."""

    name: str
    dialect: DialectName
    """Format of tool calls: one of xp's own, or `module:attribute` of a plugin."""
    images: Images | None = None
    """Limits of pictures. None means that they are refused."""


@dataclass(frozen=True)
class EpisodeConfig(JsonFile):
    """The mixture: all environments of this job's episodes."""

    SORTS_KEYS = True
    members: Mapping[str, EnvConfig]
