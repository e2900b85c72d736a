"""Recorder of a stage's trajectories: always to the stage's own file, and to OpenReward if the run asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from xp.envs.target import api_target
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import Trajectory, TrajectoryWriter
from xp.episode.upload import Uploader


class Recorder:
    """Writes each trajectory first, then hands it to the upload; use it as a context manager.

    Args:
        path: the stage's file of trajectories.
        mix: whose environments' catalog names the upload shows.
        upload_as: run name on OpenReward; None: nothing is uploaded.
        environ: where the API key is.
    """

    def __init__(self, path: Path, mix: EnvironmentMixture, upload_as: str | None, environ: Mapping[str, str]) -> None:
        self._uploader = None if upload_as is None else Uploader(api_target(environ), upload_as, mix.catalog_names())
        self._writer = TrajectoryWriter(path)

    def write(self, record: Trajectory) -> None:
        """Raises OSError when the disk is full; an upload that fails is counted, not raised."""
        self._writer.write(record)
        if self._uploader is not None:
            self._uploader.put(record)

    def close(self) -> None:
        """Finish the upload, for a bounded time, and say how much of it was lost."""
        self._writer.close()
        if self._uploader is not None:
            done = self._uploader.close()
            print(f"uploaded {done.sent} trajectories to OpenReward, {done.lost} lost", flush=True)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
