"""Stand-ins for what a machine without a GPU lacks, so that SkyRL's real training loop runs there.

Loaded by `hardware=cpu` alone. Not real in a rehearsal: CUDA, NCCL (torch.distributed runs on gloo) and bfloat16;
attention is sdpa. With backend.engine.name=vllm SkyRL's own servers of vLLM, router and client run, and weights come by
gloo (gloo.py); with the default, engine.py stands in for all of them, and weights come by a file (weights.py).
"""
