"""Says what model.lora makes of a checkpoint's network, in a process of its own, so that a plan imports no torch."""

from __future__ import annotations

import json
import sys

from xp.errors import XpError
from xp.spec import LoraSpec


def main(directory: str, settings: str) -> None:
    """Prints one line of JSON: `adapters`, their number of parameters, or `fault`, why peft refuses them.

    Args:
        directory: with the checkpoint's config.json; no weights are read.
        settings: model.lora as JSON.
    """
    from transformers import AutoConfig

    from xp.backends.trl.worker.lora import check_targets

    config = AutoConfig.from_pretrained(directory)
    answer: dict[str, int | str]
    try:
        answer = {"adapters": check_targets(config, LoraSpec(**json.loads(settings)))}
    except XpError as error:
        answer = {"fault": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
