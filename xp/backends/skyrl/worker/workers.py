"""SkyRL's FSDP workers with corrections: tied embeddings stay tied, void episodes are excluded from means, a warm-up
begins above 0, the reference uses the policy's temperature, and metrics are means over an update's tokens.

FSDPStrategy._fsdp_init_model (skyrl 0.4.0) moves the model to the meta device, which gives
embedding and head separate parameters. They diverge in training, but inference engines and the exported model use one
of them for both: the generating policy then differs from the trained one.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

import ray
import torch
from skyrl.backends.skyrl_train.distributed import fsdp_strategy
from skyrl.backends.skyrl_train.workers import worker
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import (
    FSDPCriticWorkerBase,
    FSDPPolicyWorkerBase,
    FSDPRefWorkerBase,
)

from xp.backends.skyrl.worker.advantages import critic_loss, loss_divisor
from xp.episode.picture_reader import GRID, PIXELS
from xp.lib.patching import replaced
from xp.worker.adapters import check_untied
from xp.worker.learning_rate import SCHEDULES, make_scheduler
from xp.worker.media import TextWeights, freeze_media, has_media
from xp.worker.network import disable_dropout, free_media_inputs
from xp.worker.picture_passes import seeing_nothing

CLIPPED = "loss_metrics/clip_ratio"


class TiedPolicyWorkerBase(FSDPPolicyWorkerBase):  # type: ignore[misc]
    """Policy worker that ties the embeddings again before the parameters are sharded, and freezes parts for media."""

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
        with (
            _tying(trains_vision=self.trains_vision),
            xp_schedules(self.cfg.policy.optimizer_config),
        ):
            super().init_model(model_path, num_training_steps)
        if self.cfg.policy.model.lora.rank > 0:
            check_untied(self.model.model, self.cfg.policy.model.lora.target_modules)
        disable_dropout(self.model)
        take_blank_batches(self.model, trains_vision=self.trains_vision)

    @property
    def trains_vision(self) -> bool:
        """Whether the part for pictures is trained."""
        return getattr(self.cfg.policy.model, "train_vision", False)

    @property
    def sends_vision(self) -> bool:
        """Whether the engine gets the weights of the part for pictures after an update."""
        return self.trains_vision or getattr(self.cfg.policy.model, "sends_vision", False)

    def _build_weight_source(self, dtype: Any, backend: str) -> Any:
        if self.sends_vision or not has_media(self.model.model.config):
            return super()._build_weight_source(dtype, backend)
        from skyrl.backends.skyrl_train.weight_sync.sources import FsdpWeightSource

        return FsdpWeightSource(TextWeights(self.model.model), dtype)

    def forward_backward(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self._means = Means()
        group = self.device_mesh.get_group("dp")
        with update_means(data["loss_mask"], self.cfg.algorithm, group, self._means):
            output = super().forward_backward(data, *args, **kwargs)
        output.metrics.update(self._means.reduced(group))
        return output

    def _forward_backward_micro(self, experience: Any, *args: Any, **kwargs: Any) -> Any:
        status = super()._forward_backward_micro(experience, *args, **kwargs)
        if CLIPPED in status:
            num_tokens = experience.loss_mask.sum()
            self._means.add(CLIPPED, status[CLIPPED] * num_tokens, num_tokens)
        return status


class TemperedRefWorkerBase(FSDPRefWorkerBase):  # type: ignore[misc]
    """Reference worker with the policy's temperature; SkyRL's uses temperature 1."""

    def init_model(self, model_path: str) -> None:
        super().init_model(model_path)
        take_blank_batches(self.model)
        forward = self.model.forward
        temperature = self.cfg.algorithm.temperature
        # SkyRL's worker itself passes the temperature 1.
        self.model.forward = lambda *inputs, **settings: forward(
            *inputs, **settings | {"temperature": temperature}
        )


class WeighingCriticWorkerBase(FSDPCriticWorkerBase):  # type: ignore[misc]
    """Critic worker whose batches have a weight for each token instead of SkyRL's mask."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.critic_loss_fn = self._loss

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
        with xp_schedules(self.cfg.critic.optimizer_config):
            super().init_model(model_path, num_training_steps)
        disable_dropout(self.model)

    def forward_backward(self, data: Any) -> Any:
        self._means = Means()
        self._means.add("critic_loss", 0.0, len(data))
        output = super().forward_backward(data)
        output.metrics.update(self._means.reduced(self.device_mesh.get_group("dp")))
        return output

    def _loss(self, values: Any, old_values: Any, returns: Any, config: Any, loss_mask: Any) -> Any:
        loss, is_moved = critic_loss(values, old_values, returns, config, loss_mask)
        is_taught = loss_mask > 0
        self._means.add("critic_loss", loss.detach() * len(values), 0)
        self._means.add("values_mean", values.detach()[is_taught].sum(), is_taught.sum())
        self._means.add("values_clipfrac", is_moved[is_taught].sum(), is_taught.sum())
        return loss, 0.0


class Means:
    """Means over all micro-batches and ranks of an update, by SkyRL's names; its own are means of their means."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros(2, dtype=torch.float64)
        )

    def add(self, name: str, total: Any, count: Any) -> None:
        """Adds the sum and the number of a micro-batch's values."""
        self._sums[name] += torch.tensor([float(total), float(count)])

    def reduced(self, group: Any) -> dict[str, float]:
        """The means over all ranks, which have the same names."""
        if not self._sums:
            return {}
        sums = torch.stack(list(self._sums.values())).to(torch.cuda.current_device())
        torch.distributed.all_reduce(sums, group=group)
        return dict(zip(self._sums, (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist(), strict=True))


def take_blank_batches(wrapper: Any, *, trains_vision: bool = False) -> None:
    """Lets SkyRL's model take pixels without lines, of a micro-batch whose rows have no pictures; in place.

    Args:
        wrapper: SkyRL's HFModelWrapper.
        trains_vision: whether its vision part is trained.
    """
    forward = wrapper.forward

    def forward_with_pixels(
        *inputs: Any, pixel_values: Any = None, image_grid_thw: Any = None, **settings: Any
    ) -> Any:
        is_blank = pixel_values is not None and not any(map(len, pixel_values.tensors))
        if not is_blank:
            pixels = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw}
            return forward(*inputs, **pixels, **settings)
        blank = _smallest_picture(wrapper.model, pixel_values[0])
        with seeing_nothing(wrapper.model, blank, trains=trains_vision):
            return forward(*inputs, **settings)

    wrapper.forward = forward_with_pixels


def _smallest_picture(model: Any, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of a picture of one token, made of the network's shape: a worker has no processor for PictureReader.blank.

    Args:
        model: the network, with adapters or without.
        pixels: tensor without lines.
    """
    side = model.config.vision_config.spatial_merge_size
    return {
        PIXELS: pixels.new_zeros(side * side, pixels.shape[1]),
        GRID: torch.tensor([[1, side, side]], device=pixels.device),
    }


def _tying(*, trains_vision: bool) -> AbstractContextManager[None]:
    shard = fsdp_strategy.apply_fsdp2

    def tie_and_shard(model: Any, *args: Any, **kwargs: Any) -> Any:
        model.tie_weights()
        freeze_media(model, trains_vision=trains_vision)
        free_media_inputs(model)
        return shard(model, *args, **kwargs)

    return replaced(fsdp_strategy, apply_fsdp2=tie_and_shard)


def xp_schedules(settings: Any) -> AbstractContextManager[None]:
    """Context manager: replaces transformers' get_scheduler, which FSDPStrategy calls, by xp's schedules.

    Args:
        settings: SkyRL's of the optimizer, with the smallest rate as `min_lr` if it is not 0.
    """
    native_scheduler = fsdp_strategy.get_scheduler
    minimum = getattr(settings, "min_lr", 0.0)

    def get_scheduler(
        name: Any, optimizer: Any, num_warmup_steps: int, num_training_steps: int | None
    ) -> Any:
        schedule = str(getattr(name, "value", name)).removesuffix("_with_warmup")
        if schedule not in SCHEDULES:
            return native_scheduler(name, optimizer, num_warmup_steps, num_training_steps)
        num_updates = num_training_steps or 0
        return make_scheduler(schedule, optimizer, num_warmup_steps, num_updates, minimum)

    return replaced(fsdp_strategy, get_scheduler=get_scheduler)


TiedPolicyWorker = ray.remote(num_gpus=1)(TiedPolicyWorkerBase)
TemperedRefWorker = ray.remote(num_gpus=1)(TemperedRefWorkerBase)
WeighingCriticWorker = ray.remote(num_gpus=1)(WeighingCriticWorkerBase)


def update_means(
    loss_mask: torch.Tensor, settings: Any, group: Any, means: Means
) -> AbstractContextManager[None]:
    """Context manager for a policy worker's forward and backward passes of an update with these masks.

    Args:
        loss_mask: (episodes, tokens), for this rank's episodes.
        settings: SkyRL's AlgorithmConfig.
        group: process group of the update's ranks.
        means: receives the entropy and the KL divergence of each micro-batch.
    """
    counts = torch.stack([loss_mask.sum(), (loss_mask.sum(-1) > 0).sum()]).double()
    torch.distributed.all_reduce(counts, group=group)
    num_tokens, num_episodes = counts.clamp(min=1).tolist()
    # SkyRL's gradient is the mean over the ranks.
    scale = len(loss_mask) * torch.distributed.get_world_size(group)

    def masked_mean(
        values: torch.Tensor, mask: torch.Tensor, dim: int | None = None
    ) -> torch.Tensor:
        name = "policy_entropy" if dim is None else "policy_kl"
        means.add(name, (values.detach() * mask).sum(), mask.sum())
        if dim is None:
            return (values * mask).sum() * scale / num_tokens / len(mask)
        if settings.loss_reduction == "sequence_mean":
            mask = mask / mask.sum(dim, keepdim=True).clamp(min=1)
        return (values * mask).sum(dim) * scale / loss_divisor(settings, num_tokens, num_episodes)

    return replaced(worker, masked_mean=masked_mean)
