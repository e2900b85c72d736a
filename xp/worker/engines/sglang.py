"""A local model on an SGLang server that xp starts and stops."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from xp.lib.loopback import HOST, free_ports
from xp.worker.engines import key_check
from xp.worker.engines.completions import MODEL, CompletionClient, biases
from xp.worker.engines.config import START_TIMEOUT_S
from xp.worker.engines.conversation import GeneratedTurn, GenerationRequest
from xp.worker.engines.server import Program, RunningServer, serving

DEADLINE_S = 120.0
"""Seconds to wait for an answer to a health check; SGLang's HTTP process does not generate, so it answers at once."""


class SGLangClient(CompletionClient):
    """A client of `/generate` (SGLang 0.5.15). Its samples are not reproducible: SGLang has seeds of requests only in
    its deterministic mode, which not every attention kernel has."""

    engine = "SGLang"
    path = "/generate"

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "input_ids": list(request.ids),
            "sampling_params": {
                "max_new_tokens": request.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": self.end_ids,
                **({"stop": list(sampling.stop), "no_stop_trim": True} if sampling.stop else {}),
                "skip_special_tokens": False,
                **biases(self._never),
            },
            "return_logprob": True,
        }

    def _turn(self, answer: Any) -> GeneratedTurn:
        # Log-probability, id and text of each token.
        entries = answer["meta_info"]["output_token_logprobs"]
        return GeneratedTurn(
            [int(entry[1]) for entry in entries], [float(entry[0]) for entry in entries]
        )


class AdapterClient(SGLangClient):
    """A client of the adapters of a model, by their name on the server."""

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        return {**super()._body(request), "lora_path": MODEL}


def running(
    arguments: Sequence[str], model: str, devices: str, log: Path, python: str
) -> AbstractContextManager[RunningServer]:
    """Context manager: serves a model to clients with the key.

    Args:
        arguments: the server's, without model, address and port.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES. Empty means that it runs on the CPU.
        log: file for its output.
        python: the interpreter with SGLang.

    Raises:
        XpError: (RUNTIME) it did not start in time; (ENGINE) it ended or hung during use.
    """
    port, second_port = free_ports(2, HOST)
    command = (
        *(python, "-m", key_check.__name__, "sglang", "--model-path", model),
        *("--host", HOST, "--port", str(port), *arguments),
    )
    # Its default for the second one is the first plus 10,000, which may not exist.
    environ = {"CUDA_VISIBLE_DEVICES": devices, "SGLANG_GRPC_PORT": str(second_port)}
    if not devices:
        environ |= {"SGLANG_USE_CPU_ENGINE": "1"}
    return serving(
        Program("SGLang", model, command, environ), port, START_TIMEOUT_S, DEADLINE_S, log
    )
