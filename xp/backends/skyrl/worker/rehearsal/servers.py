"""SkyRL's own vLLM servers on a CPU: adds an argument that SkyRL 0.3.0 does not pass to vLLM 0.28; router process."""

from __future__ import annotations

from functools import partial

from skyrl.backends.skyrl_train.inference_servers import vllm_router, vllm_server_actor
from skyrl.backends.skyrl_train.inference_servers.vllm_server_actor import VLLMServerActor

from xp.backends.skyrl.worker.rehearsal import router

# The argument has no default since vLLM 0.24; SkyRL 0.3.0 is for 0.23.
vllm_server_actor.create_server_socket = partial(vllm_server_actor.create_server_socket, reuse_port=False)


class CpuServerActor(VLLMServerActor):  # type: ignore[misc]
    """SkyRL's actor; with it Ray imports this module, which changes the function above in the actor's process."""


def use() -> None:
    """Makes SkyRL start its servers with this actor, and its router in a process that can import SkyRL."""
    router.forked, vllm_router._run_router_with_logging = vllm_router._run_router_with_logging, router.run_router
    vllm_server_actor.VLLMServerActor = CpuServerActor
