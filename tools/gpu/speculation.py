"""Acceptance of a draft: `python -m tools.gpu.speculation BASE OUTPUTS [--cpu]`.

Serves the model that a run below OUTPUTS published, as the server of a training under TRL that guesses tokens with the
model BASE, on one GPU; the training itself needs a second one. The last line is JSON: the share of guessed tokens that
were accepted, the tokens of a pass, and tokens/s with and without the draft. With --cpu there is no draft: vLLM 0.30
cannot verify guesses on a CPU (its `_FuncWrapper` of a kernel lacks the names of the arguments).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from xp.composition import compose
from xp.envs.builtin.sums import Sums
from xp.planning.engine_arguments import vllm_server
from xp.worker.engines.completions import MODEL
from xp.worker.engines.server import RunningServer, running

SEQUENCES = 64
NUM_TOKENS = 3
COUNTER = re.compile(r"^vllm:(\w+)_total\{.*\} (\S+)$", re.MULTILINE)


def counters(metrics: str) -> Counter[str]:
    """vLLM's counters in the text of `/metrics`, over all its engines."""
    found: Counter[str] = Counter()
    for name, value in COUNTER.findall(metrics):
        found[name] += int(float(value))
    return found


def figures(counts: Counter[str], seconds: float) -> dict[str, float]:
    """Tokens/s; with a draft, the share of its tokens that were accepted, and the tokens of a pass."""
    found = {"tokens_per_s": counts["generation_tokens"] / seconds}
    drafts = counts["spec_decode_num_drafts"]
    if drafts:
        accepted = counts["spec_decode_num_accepted_tokens"]
        found["acceptance"] = accepted / counts["spec_decode_num_draft_tokens"]
        found["tokens_per_pass"] = 1 + accepted / drafts
    return found


def asked(served: RunningServer, path: str, body: Any = None) -> str:
    """Text of the server's answer."""
    headers = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(served.url + path, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return str(answer.read().decode())


def measured(words: Sequence[str], model: str, log: Path, num_answers: int) -> dict[str, float]:
    """Figures of a server with these overrides, which answers sums."""
    spec = compose(words)
    prompts = [row["prompt"] for row in Sums().rows()["train"][:num_answers]]

    def answer(number: int) -> None:
        sampling = {"max_tokens": 48, "temperature": 1.0, "seed": number}
        asked(
            served,
            "/v1/chat/completions",
            {"model": MODEL, "messages": prompts[number], **sampling},
        )

    devices = "" if spec.hardware.accelerator == "cpu" else "0"
    with running(vllm_server(spec, 1, takes_weights=True), model, devices, log) as served:
        answer(0)
        before = counters(asked(served, "/metrics"))
        began = time.monotonic()
        with ThreadPoolExecutor(SEQUENCES) as threads:
            list(threads.map(answer, range(len(prompts))))
        seconds = time.monotonic() - began
        return figures(counters(asked(served, "/metrics")) - before, seconds)


def main(argv: Sequence[str]) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(argv)
    (model,) = (str(path.absolute()) for path in options.outputs.glob("runs/*/model"))
    words = [
        f"hardware={'cpu' if options.cpu else 'auto'}",
        "model=hf",
        f"model.path={model}",
        "env=sums",
    ]
    words += [
        "backend.engine.name=vllm",
        f"backend.engine.memory_fraction={0.1 if options.cpu else 0.4}",
    ]
    words += [f"backend.engine.max_sequences={SEQUENCES}"]
    log = options.outputs / "vllm.log"
    num_answers = 8 if options.cpu else 256
    alone = measured(words, model, log, num_answers)["tokens_per_s"]
    found = {"tokens_per_s_alone": alone}
    if not options.cpu:
        draft = f"{{method: draft, model: '{options.base.absolute()}', num_tokens: {NUM_TOKENS}}}"
        found |= measured([*words, f"backend.engine.speculative={draft}"], model, log, num_answers)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
