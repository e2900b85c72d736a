"""Replacements for parts that need a GPU, so that SkyRL's real training loop runs on a CPU.

They are loaded only with `hardware=cpu`. A rehearsal has no CUDA, no NCCL (torch.distributed runs on gloo) and no
bfloat16; attention is sdpa. With backend.engine.name=vllm, SkyRL's own vLLM servers, router and client run, and weights
are sent over gloo (gloo.py); by default engine.py replaces all of them, and weights are sent by a file (weights.py).
"""
