"""Acceptance of a draft: `python -m tools.gpu.speculation BASE OUTPUTS [--cpu]`.

Serves the model that a run below OUTPUTS published, as the server of a training under TRL that guesses tokens with the
model BASE, on one GPU; the training itself needs a second one. The last line is JSON: the share of guessed tokens that
were accepted, the tokens of a pass, and tokens/s with and without the draft.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from xp.builtin.sums import Sums
from xp.composition import compose
from xp.engines.completions import MODEL
from xp.engines.server import RunningServer, running
from xp.planning.engine import vllm_server

SEQUENCES = 64
COUNTER = re.compile(r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total\{.*\} (\S+)$", re.MULTILINE)


def acceptance(metrics: str) -> dict[str, float]:
    """Share of accepted tokens, and tokens of a pass, out of the text of vLLM's `/metrics`."""
    counts: dict[str, float] = {}
    for name, value in COUNTER.findall(metrics):
        counts[name] = counts.get(name, 0.0) + float(value)
    accepted = counts["accepted_tokens"]
    return {"acceptance": accepted / counts["draft_tokens"], "tokens_per_pass": 1 + accepted / counts["drafts"]}


def asked(served: RunningServer, path: str, body: Any = None) -> str:
    """Text of the server's answer."""
    headers = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(served.url + path, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return str(answer.read().decode())


def measured(words: Sequence[str], model: str, log: Path, num_answers: int) -> dict[str, float]:
    """Figures of a server with these overrides, which answers sums."""
    spec = compose(words)
    server = vllm_server(spec, 1, takes_weights=True)
    is_on_cpu = spec.hardware.accelerator == "cpu"
    prompts = [row["prompt"] for row in Sums().rows()["train"][:num_answers]]

    def tokens(number: int) -> int:
        sampling = {"max_tokens": 48, "temperature": 0.0 if is_on_cpu else 1.0, "seed": number}
        body = {"model": MODEL, "messages": prompts[number], **sampling}
        return int(json.loads(asked(served, "/v1/chat/completions", body))["usage"]["completion_tokens"])

    with running(server, model, "" if is_on_cpu else "0", log) as served:
        tokens(0)
        began = time.monotonic()
        with ThreadPoolExecutor(SEQUENCES) as threads:
            count = sum(threads.map(tokens, range(len(prompts))))
        found = {"tokens_per_s": count / (time.monotonic() - began)}
        return found if spec.backend.engine.speculative is None else found | acceptance(asked(served, "/metrics"))


def main(argv: Sequence[str]) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(argv)
    (model,) = (str(path.absolute()) for path in options.outputs.glob("runs/*/model"))
    place = "hardware=cpu" if options.cpu else "hardware=auto"
    words = [place, "model=hf", f"model.path={model}", "env=sums", f"backend.engine.max_sequences={SEQUENCES}"]
    words += ["backend.engine.name=vllm", f"backend.engine.memory_fraction={0.1 if options.cpu else 0.4}"]
    # On a CPU vLLM 0.30 guesses one token at a time, and verifies it at temperature 0 only.
    num_tokens = 1 if options.cpu else 3
    draft = f"{{method: draft, model: '{options.base.absolute()}', num_tokens: {num_tokens}}}"
    log, num_answers = options.outputs / "speculation.log", 8 if options.cpu else 256
    found = measured([*words, f"backend.engine.speculative={draft}"], model, log, num_answers)
    found["tokens_per_s_without"] = measured(words, model, log, num_answers)["tokens_per_s"]
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
