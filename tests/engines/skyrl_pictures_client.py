"""xp's generator with pictures on one of SkyRL's servers, and SkyRL's own update of what it plays.

python -m tests.engines.skyrl_pictures_client MODEL_DIR SERVER_URL DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from xp.backends.skyrl.worker.rehearsal import cpu_torch
from xp.worker.media import placeholder_ids


def main(directory: str, url: str, place: str) -> None:
    """Prints the largest gap of the policy's tokens, and how much other pixels change them."""
    os.environ[cpu_torch.REAL_ENGINE] = "vllm"
    cpu_torch.prepare_process()
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )
    from transformers import AutoTokenizer

    from tests.support.skyrl_pictures import play, update_logprobs

    client = RemoteInferenceClient(
        proxy_url=url,
        server_urls=[url],
        model_name=directory,
        tokenizer=AutoTokenizer.from_pretrained(directory),
        data_parallel_size=1,
    )
    model = Path(directory)
    shown = [("a", "b"), ("", "c"), ("", "")]
    played = play(model, Path(place), shown, engine=client, renderer=client, name=directory)
    batch = played.batch
    is_policys = batch["loss_mask"] > 0
    never = placeholder_ids(json.loads((model / "config.json").read_text()))
    own = update_logprobs(model, batch, 2, never)
    pixels = batch["pixel_values"]
    batch["pixel_values"] = type(pixels)([torch.rand_like(values) for values in pixels])
    other = update_logprobs(model, batch, 2, never)
    found = {
        "grids": [len(grid) for grid in batch["image_grid_thw"]],
        "gap": float((own - batch["rollout_logprobs"])[is_policys].abs().max()),
        "change": float((other - own)[is_policys].abs().max()),
        "statuses": [str(one.episode.settle().status.value) for one in played.episodes],
    }
    print("RESULT", json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
