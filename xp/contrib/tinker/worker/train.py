"""Trains adapters on a service, with xp's own loop: `python -m xp.contrib.tinker.worker.train <config.json>`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from xp.contrib.tinker.worker.batch import Row, bounds
from xp.contrib.tinker.worker.held_out import ServiceEvaluation
from xp.contrib.tinker.worker.penalties import Penalties
from xp.contrib.tinker.worker.publish import (
    publish_policy,
    save_adapters,
    service_name,
    tokenizer_place,
)
from xp.contrib.tinker.worker.rollouts import Players, ServiceRollouts, ServiceSamples
from xp.contrib.tinker.worker.service import Service, TinkerTrainConfig, grad_norm
from xp.contrib.tinker.worker.state import FORM, latest, prune, read_state, write_state
from xp.contrib.tinker.worker.step_batch import GAP, StepBatch
from xp.contrib.tinker.worker.used import check_cost
from xp.episode.finite import FiniteUpdates
from xp.episode.metrics import all_tokens, check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.episode.upload import Recorder
from xp.lib.atomic import write_atomically
from xp.lib.codec import decode
from xp.tasks.curriculum import FILE as CURRICULUM
from xp.tasks.curriculum import curriculum_of
from xp.worker.best import EarlyStop
from xp.worker.facts import record_facts
from xp.worker.learning_rate import learning_rate_factor
from xp.worker.program import run_stage
from xp.worker.publish import seal
from xp.worker.rollout_thread import RolloutThread
from xp.worker.stage import AFTER
from xp.worker.step_log import Start, StepLog, check_gap
from xp.worker.tasks import order_of, policy_chat
from xp.worker.time_limit import check_time
from xp.worker.training import TrainingProgram

AHEAD = "played_ahead.json"
"""File of a checkpoint with the steps that were sampled in advance."""
LAST = f"evaluate_{AFTER}"
"""Name, among the metrics' stages, of what follows the last step."""


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0])
    start = Start()
    program = TrainingProgram.begin(path, TinkerTrainConfig.from_json)
    config = program.config
    chat = policy_chat(config, tokenizer_place(config.spec, config.start_model), path.parent)
    tasks = program.tasks(chat)
    start.ended("tasks")
    service = Service(config.requests)
    recorded = path.parent / "trajectories" / "train.jsonl"
    with (
        EnvironmentMixture.from_file(path.with_name("episode.json"), os.environ) as mix,
        Recorder(recorded, mix, config.upload_as, os.environ) as recorder,
    ):
        record_facts(config, config.start_model, path.parent, chat)
        players = Players(config, service, chat, mix, recorder)
        held_out = None
        if config.evaluation is not None:
            held_out = ServiceEvaluation(players, path.parent, config.evaluation)
        training = ServiceTraining(players, held_out, tasks, start)
        try:
            training.run()
        except EarlyStop as stop:
            print(stop, flush=True)
        finally:
            training.close()
        training.publish()
    program.check()


@dataclass(frozen=True)
class Update:
    """Requests of one update, and what its loss is computed of."""

    rows: Sequence[int]
    """Numbers of the step's rows."""
    factors: Sequence[float]
    learning_rate: float
    forward_backward: Any
    optim_step: Any


class ServiceTraining:
    """One training on a service.

    Args:
        players: what all episodes share.
        held_out: evaluations. None means that nothing is held out.
        tasks: training tasks.
        start: clock of the time before the first step.
    """

    def __init__(
        self,
        players: Players,
        held_out: ServiceEvaluation | None,
        tasks: Sequence[Any],
        start: Start,
    ) -> None:
        self._players = players
        self._service = players.service
        self._config = players.config
        self._spec = players.config.spec
        self._held_out = held_out
        self._checkpoints = Path(self._config.places.checkpoints)
        self._start: Start | None = start
        metrics = MetricsFile(
            Path(self._config.places.metrics), "train", self._config.places.attempt
        )
        self._log = StepLog(self._config, metrics, num_steps=self._config.num_steps)
        self._finite = FiniteUpdates(self._spec.training.on_nonfinite)
        self._curriculum = curriculum_of(self._spec, tasks, self._config.num_steps)
        self._rollouts = ServiceRollouts(players, order_of(self._config, tasks), self._curriculum)
        staleness = self._spec.training.max_staleness
        self._ahead = RolloutThread(self._rollouts.play, staleness, self._config.num_steps)
        self._penalties = Penalties(self._spec, self._service, os.environ, players.chat.tokenizer)
        self._sampler: Any = None
        self._state = ""
        self._num_saved = 0
        self._step = 0
        self._step_began = time.monotonic()
        self._sync_s = 0.0
        """Seconds of sending weights to the sampler in this step."""
        self._client = self._begin()

    def _begin(self) -> Any:
        """The training client with the state of the last checkpoint, or of the start."""
        self._service.measure(samples_ahead=self._spec.training.max_staleness > 0)
        checkpoint = latest(self._checkpoints)
        begun = read_state(checkpoint or Path(self._config.start_model))
        state = begun.get("state")
        client = self._service.train(state, has_optimizer=checkpoint is not None)
        self._state = str(state or "")
        if checkpoint is not None:
            print(f"continuing from {checkpoint}", flush=True)
            self._step = int(begun["step"])
            if self._curriculum is not None:
                self._curriculum.restore(checkpoint / CURRICULUM)
            played = decode(list[ServiceSamples], (checkpoint / AHEAD).read_text())
            self._ahead.resume({samples.step: samples for samples in played})
            if self._step < self._config.num_steps:
                check_time(self._config, self._step)
                check_cost(self._config, self._step)
        return client

    def run(self) -> None:
        """Makes all steps that are left."""
        self._log.continue_after(self._step)
        while self._step < self._config.num_steps:
            step = self._step
            if self._curriculum is not None:
                self._curriculum.begin(step)
            is_due = self._held_out is not None and self._held_out.is_due(step)
            samples = self._ahead.take(step, self._refresh, self._evaluate if is_due else None)
            self._train(samples)
            self._step += 1
            self._checkpoint()

    def close(self) -> None:
        """Ends what is played beside the training."""
        self._rollouts.close()
        self._ahead.close()
        self._log.finish()

    def publish(self) -> None:
        """Publishes the model and evaluates it."""
        self._checkpoint(is_last=True)
        players = self._players
        target = Path(self._config.places.model)
        state = {"state": self._state, "step": self._step}
        publish_policy(self._service, self._client, self._spec, players.chat, target, state)
        if self._held_out is not None:
            sampler = self._service.sampler(self._client)
            self._held_out.play_trained(sampler, self._step, self._save_adapters)
        costs = self._costs()
        if any(costs.values()):
            # After the last step's line: the run's costs are the sum of all lines.
            places = self._config.places
            MetricsFile(Path(places.metrics), LAST, places.attempt).write(self._step, costs)

    def _refresh(self) -> None:
        began = time.monotonic()
        self._sampler = self._service.sampler(self._client)
        self._rollouts.update(self._sampler)
        self._sync_s = time.monotonic() - began
        if self._start is not None:  # the first step begins now
            self._step_began = time.monotonic()

    def _evaluate(self) -> None:
        assert self._held_out is not None
        self._held_out.play(self._sampler, self._step, self._save_adapters)
        self._step_began = time.monotonic()

    def _save_adapters(self, directory: Path) -> None:
        self._num_saved += 1
        rest = f"adapters-{self._step}-{self._num_saved}"
        name = service_name(self._config.places.run, rest)
        save_adapters(self._service, self._client, self._spec, name, directory)

    def _train(self, samples: ServiceSamples) -> None:
        """Makes the updates of a step: all requests are sent before the first answer is waited for."""
        began = time.monotonic()
        self._log.unpause()
        training = self._spec.training
        check_health(samples.played, training.max_void_fraction)
        line = {
            **episode_metrics(
                samples.played, training.group_size, self._spec.evaluation.pass_threshold
            ),
            **all_tokens(samples.played),
            "time/rollout_s": samples.seconds,
        }
        if training.max_staleness:
            line["training/staleness"] = float(samples.step - samples.policy)
        if self._curriculum is not None:
            line |= self._curriculum.settle(samples.step, samples.played)
        if self._start is not None:
            line["time/start_s"] = self._start.total("first rollout") - (began - self._step_began)
            self._start = None
        rows = samples.rows
        batch = StepBatch(self._service, self._config, self._penalties, rows)
        line |= batch.prepare(self._client, samples.played)
        is_fresh = samples.step == samples.policy
        self._check_gap(line, is_fresh=is_fresh)
        line["time/logprobs_s"] = time.monotonic() - began
        sent = time.monotonic()
        updates = self._send(batch, rows)
        values = [self._received(batch, update) for update in updates]
        if values:
            line |= batch.first_gap(values[0])
            self._check_gap(line, is_fresh=is_fresh)
        line |= {
            name: fmean(of_update[name] for of_update in values if name in of_update)
            for name in _names(values)
            if name != GAP
        }
        line["time/update_s"] = time.monotonic() - sent
        line["time/weight_sync_s"] = self._sync_s
        self._sync_s = 0.0
        ended = time.monotonic()
        line["time/step_s"] = ended - self._step_began
        self._step_began = ended
        line |= self._costs()
        self._log.line(samples.step + 1, line)

    def _check_gap(self, line: Mapping[str, float], *, is_fresh: bool) -> None:
        """Raises XpError(DIVERGED) for a large gap of episodes of the policy that is updated."""
        gap = line.get(GAP)
        if gap is not None and is_fresh:
            check_gap(self._step + 1, gap, self._spec.training.max_logprob_gap)

    def _send(self, batch: StepBatch, rows: Sequence[Row]) -> list[Update]:
        training = self._spec.training
        size = training.episodes_per_step // training.updates_per_step
        updates = []
        for number in range(training.all_updates_per_step):
            part = number % training.updates_per_step
            chosen = [at for at, row in enumerate(rows) if row.episode // size == part]
            if not chosen:
                continue
            index = self._step * training.all_updates_per_step + number
            rate = training.learning_rate * learning_rate_factor(
                training.lr_schedule,
                training.warmup_updates,
                self._config.num_steps * training.all_updates_per_step,
                index,
                training.min_learning_rate / training.learning_rate,
            )
            data, of_rows = batch.data(chosen)
            requests = self._config.requests
            self._service.used.add(trained=sum(len(rows[at].ids) - 1 for at in chosen))
            updates.append(
                Update(
                    chosen,
                    of_rows,
                    rate,
                    self._client.forward_backward(
                        data, requests["loss_fn"], bounds(requests) or None
                    ),
                    self._client.optim_step(self._service.adam(rate)),
                )
            )
        return updates

    def _received(self, batch: StepBatch, update: Update) -> dict[str, float]:
        """Metrics of an update, when both answers are there."""
        answer = self._service.wait(update.forward_backward, "a gradient")
        outputs = [output["logprobs"].data for output in answer.loss_fn_outputs]
        values = batch.metrics(update.rows, update.factors, outputs)
        norm = grad_norm(self._service.wait(update.optim_step, "an update"))
        self._finite.are_finite(
            self._step + 1, {"loss": values["training/loss"], "gradient norm": norm}
        )
        self._log.count_update(norm)
        if norm is not None:
            values["training/grad_norm"] = norm
        return values | {"training/learning_rate": update.learning_rate}

    def _costs(self) -> dict[str, float]:
        return self._service.used.metrics(self._spec.hardware.usd_per_million_tokens)

    def _checkpoint(self, *, is_last: bool = False) -> None:
        """Writes a checkpoint if one is due: xp's state beside the service's paths, sealed when it is whole."""
        training = self._spec.training
        directory = self._checkpoints / FORM.format(self._step)
        is_due = is_last or self._step % training.checkpoint_every == 0
        if not is_due or (directory / "digests.json").exists() or self._step == 0:
            return
        directory.mkdir(parents=True, exist_ok=True)
        name = service_name(
            self._config.places.run, f"step-{self._step}-{self._config.places.attempt}"
        )
        self._state = self._service.save(self._client, name)
        every = training.export_every or training.checkpoint_every
        if self._step % every == 0 or is_last:
            self._save_adapters(directory)
        if self._curriculum is not None:
            state = self._curriculum.state(self._step).to_json()
            write_atomically(directory / CURRICULUM, state)
        played = [] if is_last else [asdict(samples) for samples in self._ahead.all_played()]
        write_atomically(directory / AHEAD, json.dumps(played) + "\n")
        write_state(directory, {"state": self._state, "step": self._step})
        chat = self._players.chat
        seal(directory, chat.end_ids, chat.template)
        prune(self._checkpoints, training.keep_checkpoints, self._service.forget)
        if self._step < self._config.num_steps and not is_last:
            check_time(self._config, self._step)
            check_cost(self._config, self._step)


def _names(values: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted({name for of_update in values for name in of_update})


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
