"""A local model on an SGLang server that xp starts and stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xp.backends.common_rows import longest_episode
from xp.backends.trl.worker.completions import ServerWriter
from xp.backends.trl.worker.server import Program, Served, serving
from xp.backends.trl.worker.writing import GeneratedTurn, GenerationRequest
from xp.engines import key_check
from xp.security.loopback import HOST, free_ports
from xp.spec import RunSpec

START_TIMEOUT_S = 1800.0
PATIENCE_S = 120.0
"""Seconds to wait for an answer to a health check; SGLang's HTTP process does not generate, so it answers at once."""
ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph"),
)
"""Arguments for any CPU; SGLang's default `intel_amx` needs one of Intel's newer CPUs."""
CACHE_TOKENS_ON_CPU = 32
"""Number of longest episodes in the cache on a CPU, where `--mem-fraction-static` would count the whole memory."""


class SGLangWriter(ServerWriter):
    """A client of `/generate` (SGLang 0.5.15). Its samples are not reproducible: SGLang has seeds of requests only in
    its deterministic mode, which not every attention kernel has."""

    engine = "SGLang"
    path = "/generate"

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = self._sampling
        return {
            "input_ids": list(request.ids),
            "sampling_params": {
                "max_new_tokens": request.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": self._end_ids,
                **({"stop": list(sampling.stop), "no_stop_trim": True} if sampling.stop else {}),
                "skip_special_tokens": False,
            },
            "return_logprob": True,
        }

    def _turn(self, answer: Any) -> GeneratedTurn:
        rows = answer["meta_info"]["output_token_logprobs"]
        return GeneratedTurn([int(row[1]) for row in rows], [float(row[0]) for row in rows])


def server_arguments(spec: RunSpec) -> tuple[str, ...]:
    """Arguments of SGLang's server, without model, address and port."""
    engine, is_on_cpu = spec.backend.engine, spec.hardware.accelerator == "cpu"
    longest = longest_episode(spec)
    num_accelerators = 0 if is_on_cpu else spec.hardware.accelerators_per_node
    return (
        *("--tp-size", str(engine.tensor_parallel)),
        *("--dp-size", str(max(1, num_accelerators // engine.tensor_parallel))),
        *("--mem-fraction-static", str(engine.memory_fraction)),
        *("--max-running-requests", str(engine.max_sequences)),
        *(("--chunked-prefill-size", str(engine.max_batched_tokens)) if engine.max_batched_tokens else ()),
        *("--context-length", str(longest)),
        *("--dtype", spec.model.dtype.value),
        *("--random-seed", str(spec.seed)),
        *(() if engine.prefix_caching else ("--disable-radix-cache",)),
        *(("--disable-cuda-graph",) if engine.eager and not is_on_cpu else ()),
        # Without the model's own sampling defaults: every request has all parameters.
        *("--sampling-defaults", "openai"),
        # SGLang's warm-up would send a request without the key.
        *("--skip-server-warmup", "--log-level-http", "warning"),
        *((*ON_CPU, "--max-total-tokens", str(CACHE_TOKENS_ON_CPU * longest)) if is_on_cpu else ()),
    )


@contextmanager
def running(spec: RunSpec, model: str, devices: str, log: Path, python: str) -> Iterator[Served]:
    """Context manager: serves a model to clients with the key.

    Args:
        spec: the spec, with the engine's sizes and the hardware.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: file for its output.
        python: the interpreter with SGLang.

    Raises:
        XpError: (RUNTIME) it did not start in time; (ENGINE) it ended or hung during use.
    """
    port, second_port = free_ports(2, HOST)
    command = (
        *(python, "-m", key_check.__name__, "sglang", "--model-path", model, "--host", HOST, "--port", str(port)),
        *server_arguments(spec),
    )
    # Its default for the second one is the first plus 10,000, which may not exist.
    environ = {"CUDA_VISIBLE_DEVICES": devices, "SGLANG_GRPC_PORT": str(second_port)}
    environ |= {"SGLANG_USE_CPU_ENGINE": "1"} if spec.hardware.accelerator == "cpu" else {}
    program = Program("SGLang", command, environ)
    print(f"SGLang serves {model} on http://{HOST}:{port} (accelerators {devices}); its log is {log}", flush=True)
    with serving(program, port, START_TIMEOUT_S, PATIENCE_S, log) as served:
        yield served
