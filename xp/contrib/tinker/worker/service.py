"""The service behind the Tinker API: inputs of the programs that use it, clients, faults as exit codes, tokens, losses."""

from __future__ import annotations

import io
import math
import os
import sys
import tarfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urljoin, urlsplit

from xp.contrib.tinker.worker.used import UsedTokens
from xp.errors import ExitCode, XpError
from xp.lib.loopback import keyed_opener
from xp.worker.sft import SftConfig
from xp.worker.stage import TrainConfig

URL: Final = "TINKER_BASE_URL"
KEY: Final = "TINKER_API_KEY"
"""Variables with the service's address and key."""
QUIET: Final = {"TINKER_TELEMETRY": "0"}
"""Variable with which the SDK sends no events beside the requests themselves."""
DEADLINE_S: Final = 1800.0
"""Longest wait for the answer to one request; `backend.overrides.deadline_s` is another one."""
NEWS_S: Final = 60.0
"""Seconds between lines about a request that waits."""
TOLERANCE: Final = 0.1
"""Largest relative difference of a measured ratio, of numbers with as few as 8 bits, from an expected one."""
PROBE: Final = (3, 5, 7, 11, 13, 17, 19, 23)
"""Ids of the probe's tokens, which every vocabulary has."""


@dataclass(frozen=True, kw_only=True)
class TinkerTrainConfig(TrainConfig):
    """Input of xp.contrib.tinker.worker.train."""

    requests: Mapping[str, Any]
    """Arguments of the requests to the service."""

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps."""
        return replace(self, steps=steps)


@dataclass(frozen=True, kw_only=True)
class TinkerSftConfig(SftConfig):
    """Input of xp.contrib.tinker.worker.sft."""

    requests: Mapping[str, Any]


class LossReduction(StrEnum):
    """Sum over a request's tokens that the service differentiates."""

    SUM = "sum"
    """The sum over all tokens, as Tinker's documentation says."""
    MEAN = "mean"
    """The mean over data of the mean over a datum's tokens, as SkyRL's JAX backend computes."""


RATIOS: Final = {
    LossReduction.SUM: (1.0, 2.0),
    LossReduction.MEAN: (1 / (2 * (len(PROBE) - 1)), 1.0),
}
"""Norms of the gradient of a token's loss, as multiples of that of the token alone: beside the probe's other tokens and
a second datum without a loss, and sent twice.

A mean over all tokens of a request has 1/8 and 1, the sum of the means of data 1/7 and 2, the mean of their sums 1/2
and 1.
"""


@dataclass
class Service:
    """A connection to the service.

    Raises (all methods):
        XpError: (SECRET) the key is refused; (STAGE_FAILED) a request is refused; (ENGINE) no answer by the deadline, or
            the service fails.
    """

    requests: Mapping[str, Any]
    used: UsedTokens = field(default_factory=UsedTokens)
    reduction: LossReduction = LossReduction.SUM

    def __post_init__(self) -> None:
        import tinker

        self.deadline_s = float(self.requests.get("deadline_s", DEADLINE_S))
        self._clients = self.call(
            "a session",
            lambda: tinker.ServiceClient(base_url=os.environ[URL], api_key=os.environ[KEY]),
        )

    @property
    def model(self) -> str:
        """The service's name of the model without adapters."""
        return str(self.requests["base_model"])

    def train(self, state: str | None = None, *, has_optimizer: bool = True) -> Any:
        """A training client: with new adapters, or of a saved state.

        Args:
            state: the service's path.
            has_optimizer: whether the optimizer continues too.
        """
        clients = self._clients
        if state is None:
            names = ("base_model", "rank", "seed", "train_attn", "train_mlp", "train_unembed")
            arguments = {name: self.requests[name] for name in names}
            return self.call("adapters", lambda: clients.create_lora_training_client(**arguments))
        name = "create_training_client_from_state"
        if has_optimizer:
            name += "_with_optimizer"
        return self.call(f"the state {state}", lambda: getattr(clients, name)(state))

    def sampler(self, training: Any) -> Any:
        """A sampling client with the weights of a training client."""
        from tinker.lib.retry_handler import RetryConfig

        config = RetryConfig(progress_timeout=self.deadline_s)
        make = training.save_weights_and_get_sampling_client
        return self.call("weights for sampling", lambda: make(retry_config=config))

    def plain_sampler(self, model: str) -> Any:
        """A sampling client of a model without adapters."""
        return self.call(model, lambda: self._clients.create_sampling_client(base_model=model))

    def logprobs(self, sampler: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token but the first, of all sequences."""
        from tinker.types import ModelInput

        self.used.add(prompt=sum(map(len, sequences)))
        futures = [sampler.compute_logprobs(ModelInput.from_ints(list(ids))) for ids in sequences]
        return [self.wait(future, "log-probabilities")[1:] for future in futures]

    def save(self, training: Any, name: str) -> str:
        """Saves weights and optimizer; returns the service's path."""
        return str(self.wait(training.save_state(name), "a checkpoint").path)

    def forget(self, state: str) -> None:
        """Deletes a saved state; a service that cannot keeps it."""
        import tinker

        if state:
            try:
                rest = self._clients.create_rest_client()
                rest.delete_checkpoint_from_tinker_path(state).result(timeout=self.deadline_s)
            except (tinker.TinkerError, ValueError, NotYet) as error:
                print(f"xp: {state} stays on the service: {error}", file=sys.stderr, flush=True)

    def download(self, training: Any, name: str, directory: Path) -> None:
        """Saves the weights for sampling and writes the archive's files, peft's adapters, into a directory."""
        path = str(self.wait(training.save_weights_for_sampler(name), "adapters").path)
        run, *parts = path.removeprefix("tinker://").split("/")
        # SkyRL's path lacks the kind.
        checkpoint = parts[-1] if len(parts) == 1 else "/".join(parts)
        asked = self._clients.create_rest_client().get_checkpoint_archive_url(run, checkpoint)
        url = urljoin(os.environ[URL], str(self.wait(asked, "the archive").url))
        is_own = urlsplit(url)[:2] == urlsplit(os.environ[URL])[:2]
        headers = {"X-API-Key": os.environ[KEY]} if is_own else {}
        # The address of a storage is signed, and gets no key.
        opener = keyed_opener() if is_own else urllib.request.build_opener()
        sent = urllib.request.Request(url, headers=headers)
        data = self.call("the archive", lambda: opener.open(sent, timeout=self.deadline_s).read())
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(directory, filter="data")

    def call(self, what: str, make: Any) -> Any:
        """Calls a function that waits for the service itself."""
        import tinker
        from tinker.lib.retryable_exception import RetryableException

        given_up = (tinker.TinkerError, RetryableException, OSError, ValueError, RuntimeError)
        try:
            return make()
        except given_up as error:
            raise fault_of(what, error) from error

    def wait(self, future: Any, what: str) -> Any:
        """Waits for the result of a request, and prints a line each minute."""
        began = time.monotonic()
        while True:
            left = self.deadline_s - (time.monotonic() - began)
            result = partial(future.result, timeout=max(0.0, min(NEWS_S, left)))
            try:
                return self.call(what, result)
            except _Waiting:
                waited = time.monotonic() - began
                if waited >= self.deadline_s:
                    raise XpError(
                        f"the service at {URL} did not answer a request for {what} in {self.deadline_s:g} s; resume the run when"
                        " it answers, or set backend.overrides.deadline_s higher",
                        ExitCode.ENGINE,
                    ) from None
                print(f"waiting for {what} of the service: {waited:.0f} s", flush=True)

    def measure(self, *, samples_ahead: bool) -> None:
        """Measures what the service computes, with adapters that are used for nothing else.

        Args:
            samples_ahead: whether old weights are sampled from while new ones are trained.

        Raises:
            XpError: (PLAN) it averages in another way, or samples from the weights that it trains.
        """
        training = self.train()
        sampler = self.sampler(training) if samples_ahead else None
        before = None if sampler is None else self.logprobs(sampler, [PROBE])[0]
        norms = self._probe(training)
        if all(norms):
            self.reduction = reduction_of(norms)
        else:
            print(
                "the service reports no gradient norm, which would show how it averages: its loss is taken as the sum over"
                " tokens, as Tinker's documentation says",
                flush=True,
            )
        if sampler is not None and before is not None:
            after = self.logprobs(sampler, [PROBE])[0]
            if max(abs(a - b) for a, b in zip(before, after, strict=True)) > 1e-3:
                raise XpError(
                    "training.max_staleness: the service samples from the weights that it trains, so that nothing can be"
                    " sampled in advance; set 0",
                    ExitCode.PLAN,
                )

    def _probe(self, training: Any) -> list[float]:
        """Norms of the gradient of one token's loss: alone, beside other tokens and data without a loss, and in two data.

        The last update changes the weights.
        """
        pair = PROBE[:2]
        single = datum(pair, logprobs=[0.0], advantages=[1.0])
        silent = datum(pair, logprobs=[0.0], advantages=[0.0])
        rest = len(PROBE) - 2
        longer = datum(PROBE, logprobs=[0.0] * (rest + 1), advantages=[1.0, *[0.0] * rest])
        norms: list[float] = []
        for data, rate in (([single], 0.0), ([longer, silent], 0.0), ([single] * 2, 1e-2)):
            training.forward_backward(data, "importance_sampling")
            self.used.add(trained=sum(each.model_input.length for each in data))
            step = training.optim_step(self.adam(rate, is_cut=False))
            norms.append(grad_norm(self.wait(step, "a probe")) or 0.0)
        return norms

    def adam(self, learning_rate: float, *, is_cut: bool = True) -> Any:
        """Arguments of an update; `is_cut`: whether the gradient is cut to `training.max_grad_norm`."""
        from tinker.types import AdamParams

        names = ("beta1", "beta2", "eps", "weight_decay")
        return AdamParams(
            learning_rate=learning_rate,
            grad_clip_norm=self.requests["grad_clip_norm"] if is_cut else 0.0,
            **{name: self.requests[name] for name in names},
        )


def datum(ids: Sequence[int], **tails: Sequence[float]) -> Any:
    """One sequence of a request of training: a Datum of the API.

    Args:
        ids: all tokens.
        tails: inputs of the loss, such as `advantages`, of the last tokens; 0 for those before.
    """
    from tinker.types import Datum, ModelInput, TensorData

    size = len(ids) - 1
    inputs = {"target_tokens": TensorData(data=list(ids[1:]), dtype="int64", shape=[size])}
    for name, tail in tails.items():
        values = [*[0.0] * (size - len(tail)), *tail]
        inputs[name] = TensorData(data=values, dtype="float32", shape=[size])
    return Datum(model_input=ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=inputs)


def reduction_of(norms: Sequence[float]) -> LossReduction:
    """How a service averages, of the norms of `Service._probe`.

    Raises:
        XpError: (PLAN) it is neither a sum nor a mean over data of the means of each.
    """
    ratios = [norm / norms[0] for norm in norms[1:]]
    for reduction, expected in RATIOS.items():
        pairs = zip(ratios, expected, strict=True)
        if all(math.isclose(ratio, number, rel_tol=TOLERANCE) for ratio, number in pairs):
            return reduction
    raise XpError(
        f"the service neither sums nor averages the losses of tokens (gradient with padding: x{ratios[0]:.3g}, expected 1 or"
        f" 0.0714; of a token sent twice: x{ratios[1]:.3g}, expected 2 or 1); use another server",
        ExitCode.PLAN,
    )


def grad_norm(update: Any) -> float | None:
    """The gradient's norm that an update reports. None means that the service reports none."""
    metrics = update.metrics or {}
    return next((value for name, value in metrics.items() if name.endswith("grad_norm")), None)


class _Waiting(XpError):
    """No answer yet."""


def status_of(error: Exception) -> int | None:
    """HTTP status of an error of the SDK, or of its cause. None means that there is none."""
    for fault in (error, error.__cause__):
        status: int | None = getattr(fault, "status_code", None)
        if status is not None:
            return status
    return None


def fault_of(what: str, error: Exception) -> XpError:
    """The fault of a request that the SDK has given up, after its own retries."""
    place = f"the service at {URL}"
    if isinstance(error, NotYet | TimeoutError):
        return _Waiting(f"{place} did not answer a request for {what}", ExitCode.ENGINE)
    status = status_of(error)
    reason = " ".join(str(error).split())[:500]
    if status in (401, 403):
        return XpError(f"{place} refuses {KEY}; set the key of this service", ExitCode.SECRET)
    is_refused = status is not None and 400 <= status < 500 and status not in (408, 409, 429)
    # What a restarted server has lost is not the run's fault.
    if is_refused and "not loaded" not in reason:
        return XpError(f"{place} refuses {what}: {reason}", ExitCode.STAGE_FAILED)
    return XpError(f"{place} failed at {what}: {reason}; resume the run", ExitCode.ENGINE)
