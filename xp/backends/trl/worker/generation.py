"""Chooses the engine of a training: vLLM's server, vLLM inside the process, or the policy itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from xp.backends.trl.worker.policy import WholePolicy
from xp.backends.trl.worker.process import Ranks
from xp.episode.sized_pictures import SizedPictures
from xp.episode.tokens import ChatTokens
from xp.lib.loopback import HOST
from xp.spec import Sampling
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.key_check import KEY
from xp.worker.media import placeholder_ids

EngineOf = Callable[[Sampling, str], OpenEngine]
"""Function from the sampling and the seed of training or evaluation to the engine with the weights of a step.

An episode's randomness depends on the seed, its task and its sample, not on ranks or other episodes."""


class Generation:
    """Opens the engine of each rollout step.

    Args:
        chat: the policy's tokenizer.
        ranks: the training processes.
        log: log of the vLLM server, if there is one.
        is_ahead: whether episodes are played while the trainer's weights change.
        guesses: whether vLLM guesses tokens.
    """

    def __init__(
        self, chat: ChatTokens, ranks: Ranks, log: str, *, is_ahead: bool, guesses: bool
    ) -> None:
        self._chat = chat
        self._ranks = ranks
        self._log = log
        self._policy = WholePolicy(is_copied=is_ahead)
        self._guesses = guesses
        self._sized: SizedPictures | None = None
        """For vLLM; the pictures of a step are often those of another one."""
        if chat.pictures is not None:
            self._sized = SizedPictures(chat.pictures)
        self._model: Any = None
        self._num_updates = 0

    def update(self, trainer: Any, *, sends: bool = True) -> None:
        """Gives the engine the current weights; every rank must call it, and no rank may generate meanwhile.

        Args:
            trainer: TRL's trainer.
            sends: whether they are sent to vLLM.
        """
        self._num_updates += 1
        if not trainer.args.use_vllm:
            self._model = self._policy.current(trainer)
            return
        if sends:
            trainer.vllm_generation.sync_weights()
        # The main process may be the last to send.
        self._ranks.wait()

    def engine(self, trainer: Any) -> AbstractContextManager[EngineOf]:
        """Context manager of the engine with the weights of the last `update`."""
        if trainer.args.use_vllm:
            return self._vllm(trainer)
        return self._transformers()

    @contextmanager
    def _transformers(self) -> Iterator[EngineOf]:
        from xp.worker.engines.transformers_engine import over_model

        model = self._model
        was_training = model.training
        model.eval()
        yield partial(over_model, model, self._chat)
        model.train(was_training)

    @contextmanager
    def _vllm(self, trainer: Any) -> Iterator[EngineOf]:
        from xp.backends.trl.worker.colocated import ColocatedEngine, awake
        from xp.worker.engines.completions import CompletionClient, ServerEngine
        from xp.worker.engines.vllm_pictures import PictureClient, VLLMPictures

        vllm = trainer.vllm_generation
        end_ids = self._chat.end_ids
        key = os.environ.get(KEY)
        never: list[int] = []
        # vLLM refuses biases together with guessed tokens.
        if not self._guesses:
            never = placeholder_ids(trainer.accelerator.unwrap_model(trainer.model).config)
        pictures = None
        client_of: Callable[..., CompletionClient] = CompletionClient
        if self._sized is not None:
            pictures = VLLMPictures(self._sized, f"/{self._num_updates}")
            client_of = partial(PictureClient, pictures=pictures)

        def engine_of(sampling: Sampling, seed: str) -> OpenEngine:
            is_stop = self._chat.holds_one_of(sampling.stop)
            if vllm.mode != "server":
                return lambda opening: ColocatedEngine(
                    vllm, opening, end_ids, sampling, seed, is_stop, never, pictures
                )
            client = client_of(
                vllm.server_base_url, sampling, end_ids, self._log, key=key, never=never
            )
            return lambda opening: ServerEngine(client, opening, seed, is_stop)

        with awake(vllm):
            yield engine_of


def send_text_alone(generation: Any, frozen: Collection[str], *, sees: bool) -> None:
    """Makes TRL send vLLM all weights but those outside the text network, which never change.

    A colocated engine without pictures is loaded without them. One that reads pictures loses them while it sleeps, and
    so gets all weights.

    Args:
        generation: trl.generation.vllm_generation.VLLMGeneration.
        frozen: names of the weights outside the text network.
        sees: whether the engine reads pictures.
    """
    if not frozen or (sees and generation.enable_sleep_mode):
        return
    all_weights = generation._iter_named_params

    def of_text() -> Iterator[tuple[str, Any]]:
        for name, weight in all_weights():
            if name not in frozen:
                yield name, weight

    generation._iter_named_params = of_text


def let_trl_send_key(key: str) -> None:
    """Makes TRL's client send the key of the run's vLLM server: it has no argument for it, and connects at once."""
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    class ClientWithKey(base):  # type: ignore[misc]
        def check_server(self, *args: Any, **kwargs: Any) -> None:
            self.session.headers["Authorization"] = f"Bearer {key}"
            super().check_server(*args, **kwargs)

    vllm_generation.VLLMClient = ClientWithKey


Metadata = Sequence[tuple[str, str, Sequence[int]]]
"""Name, type and shape of each tensor."""


def send_over_gloo() -> None:
    """Makes TRL's client of a vLLM server send weights over gloo, instead of NCCL, which needs a GPU."""
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    class CpuClient(base):  # type: ignore[misc]
        def init_communicator(self, device: Any = 0) -> None:
            from xp.worker.gloo_transfer import RendezvousInfo, open_group

            meeting = RendezvousInfo(HOST, self.group_port, self.get_world_size() + 1)
            self.communicator = open_group(
                meeting, partial(self._tell, "init_weight_transfer_engine", "init_info")
            )

        def update_named_params(
            self, metadata: Metadata, named_params: Iterator[tuple[str, Any]]
        ) -> None:
            from xp.worker.gloo_transfer import Announcement, send

            names, dtypes, shapes = (list(column) for column in zip(*metadata, strict=True))
            announced = Announcement(names, dtypes, shapes)
            tensors = (tensor for _, tensor in named_params)
            self._start_weight_update()
            send(
                self.communicator,
                announced,
                tensors,
                partial(self._tell, "update_weights", "update_info"),
            )
            self._finish_weight_update()

        def close_communicator(self) -> None:
            self.communicator = None

        def _tell(self, path: str, name: str, content: dict[str, Any]) -> Any:
            return self._post(f"{self.base_url}/{path}", json={name: content})

    vllm_generation.VLLMClient = CpuClient
