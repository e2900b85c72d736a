"""Uploads trajectories to OpenReward in the background; a failed upload is counted and does not affect the run."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from xp.envs.base import EnvFault
from xp.envs.loop import current_loop, run
from xp.envs.pictures import text_of
from xp.envs.target import Target, api_target
from xp.envs.transport import Repeat, Transport, deadline_in
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import Trajectory, TrajectoryWriter

MAX_WAITING: Final = 2048
"""Largest number of trajectories in memory; further ones are lost, and counted."""
NUM_SENDERS: Final = 4
REQUEST_S: Final = 60.0
BATCH_EVENTS: Final = 128
BATCH_BYTES: Final = 1_000_000
KINDS: Final = {
    "system": "system_message",
    "user": "user_message",
    "assistant": "assistant_message",
}

Event = dict[str, Any]
log = logging.getLogger(__name__)


class Uploader:
    """Sends trajectories in the background, on the process's loop.

    Args:
        api: the OpenReward API (xp.envs.target.api_target).
        run_name: name under which the rollouts are shown.
        environments: member of the mixture -> its name in the catalog.
    """

    def __init__(self, api: Target, run_name: str, environments: Mapping[str, str]) -> None:
        self._transport = Transport(api)
        self._run_name = run_name
        self._environments = environments
        self._waiting = 0
        self._sent = 0
        self._lost = 0
        self._queue: asyncio.Queue[Trajectory] = asyncio.Queue()
        self._senders: list[asyncio.Task[None]] = []

    def put(self, record: Trajectory) -> None:
        """Queues a trajectory; returns at once and never raises."""
        current_loop().call_soon_threadsafe(self._take, record)

    def close(self, limit_s: float = 30.0) -> tuple[int, int]:
        """Sends waiting trajectories for at most `limit_s` seconds; returns how many were sent, and how many lost."""
        run(self._finish(limit_s), limit_s + 10.0)
        return self._sent, self._lost

    def _take(self, record: Trajectory) -> None:
        if not self._senders:
            loop = asyncio.get_running_loop()
            self._senders = [loop.create_task(self._send_all()) for _ in range(NUM_SENDERS)]
        if self._waiting >= MAX_WAITING:
            self._lose("the queue is full")
            return
        self._waiting += 1
        self._queue.put_nowait(record)

    async def _send_all(self) -> None:
        while True:
            record = await self._queue.get()
            try:
                await self._send(record)
                self._sent += 1
            except EnvFault as fault:
                self._lose(str(fault))
            finally:
                self._waiting -= 1
                self._queue.task_done()

    async def _send(self, record: Trajectory) -> None:
        for batch in batches(
            rollout_events(record, self._run_name, self._environments.get(record.env))
        ):
            deadline = deadline_in(REQUEST_S)
            # Each event has its own id, so that the API recognises repeated events.
            await self._transport.request(
                "POST",
                "/v1/rollouts",
                deadline=deadline,
                body={"events": batch},
                repeat=Repeat.NOTICE,
            )

    async def _finish(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._queue.join()
        except TimeoutError:
            self._lost += self._waiting
        for sender in self._senders:
            sender.cancel()
        await self._transport.close()

    def _lose(self, why: str) -> None:
        if not self._lost:
            log.warning(
                "a trajectory could not be uploaded: %s; the run's record says how many in the end",
                why,
            )
        self._lost += 1


def rollout_events(record: Trajectory, run_name: str, environment: str | None) -> list[Event]:
    """A trajectory as the API's events, the rollout first; without the task's spec, which may include the answer."""
    rollout_id = str(uuid.uuid4())
    at = int(record.started_at * 1000)
    started: Event = {
        "eventType": "rollout",
        "eventId": rollout_id,
        "timestamp": at,
        "runName": run_name,
        "rolloutName": f"{record.phase}-{record.step}-{record.split}-{record.index}-{record.sample}",
        "split": record.split,
        "step": record.step,
        "metadata": {
            "status": record.outcome.status.value,
            "void": record.outcome.reward is None,
            "env": record.env,
        },
        "rollout_info": {"task_index": record.index, "current_step": record.step, "harness": "xp"},
    }
    if environment is not None:
        started["environment"] = environment
    if record.outcome.reward is not None:
        started["metadata"]["reward"] = record.outcome.reward
    frame = {"eventType": "message", "rolloutEventId": rollout_id, "timestamp": at}
    messages = [
        {**frame, "eventId": str(uuid.uuid4()), "index": index, **event}
        for index, event in enumerate(_message_events(record))
    ]
    return [started, *messages]


def batches(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Splits events into batches of the API's largest size."""
    batch: list[Event] = []
    size = 0
    for event in events:
        length = len(json.dumps(event))
        if batch and (len(batch) >= BATCH_EVENTS or size + length > BATCH_BYTES):
            yield batch
            batch = []
            size = 0
        batch.append(event)
        size += length
    if batch:
        yield batch


def _message_events(record: Trajectory) -> Iterator[Event]:
    """Events of the messages, in order; a tool's message has the reward of its call."""
    answered = {
        call["message"]: call["result"]
        for call in record.tool_calls
        if "result" in call and "message" in call
    }
    for index, message in enumerate(record.messages):
        event: Event = {
            "type": KINDS.get(message["role"], "tool_result"),
            "content": text_of(message),
        }
        if message["role"] not in KINDS:
            result = answered.get(index, {})
            event |= {"callId": str(index), "isFinished": bool(result.get("finished"))}
            if result.get("reward") is not None:
                event["reward"] = result["reward"]
        yield event


class Recorder(AbstractContextManager["Recorder", None]):
    """Writes each trajectory, then queues it for upload; a context manager.

    Args:
        path: the stage's file of trajectories.
        mix: the mixture, for the environments' names in the catalog.
        upload_as: run name on OpenReward. None means that nothing is uploaded.
        environ: variables with the API key.
    """

    def __init__(
        self, path: Path, mix: EnvironmentMixture, upload_as: str | None, environ: Mapping[str, str]
    ) -> None:
        self._uploader = None
        if upload_as is not None:
            self._uploader = Uploader(
                api_target(environ, mix.allowed_origins()), upload_as, mix.catalog_names()
            )
        self._writer = TrajectoryWriter(path)

    def write(self, record: Trajectory) -> None:
        """Writes a trajectory; raises OSError if the disk is full. A failed upload is counted, not raised."""
        self._writer.write(record)
        if self._uploader is not None:
            self._uploader.put(record)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finishes the upload within a time limit, and prints how many trajectories were lost."""
        self._writer.close()
        if self._uploader is not None:
            num_sent, num_lost = self._uploader.close()
            print(f"uploaded {num_sent} trajectories to OpenReward, {num_lost} lost", flush=True)
