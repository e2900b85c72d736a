"""Records a stage's trajectories: always in the stage's file, and on OpenReward if the run uploads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from xp.envs.target import api_target
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import Trajectory, TrajectoryWriter
from xp.episode.upload import Uploader


class Recorder:
    """Writes each trajectory, then queues it for upload; a context manager.

    Args:
        path: the stage's file of trajectories.
        mix: the mixture, for the environments' names in the catalog.
        upload_as: run name on OpenReward; None: nothing is uploaded.
        environ: variables with the API key.
    """

    def __init__(self, path: Path, mix: EnvironmentMixture, upload_as: str | None, environ: Mapping[str, str]) -> None:
        self._uploader = None
        if upload_as is not None:
            self._uploader = Uploader(api_target(environ, mix.allowed_origins()), upload_as, mix.catalog_names())
        self._writer = TrajectoryWriter(path)

    def write(self, record: Trajectory) -> None:
        """Writes a trajectory; raises OSError if the disk is full. A failed upload is counted, not raised."""
        self._writer.write(record)
        if self._uploader is not None:
            self._uploader.put(record)

    def close(self) -> None:
        """Finishes the upload within a time limit, and prints how many trajectories were lost."""
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
