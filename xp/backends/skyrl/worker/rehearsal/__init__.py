"""Stand-ins for what a machine without a GPU lacks, so that SkyRL's real training loop runs there.

Loaded by `hardware=cpu` alone. What is not real in a rehearsal: CUDA and NCCL (torch.distributed runs on gloo), vLLM
(engine.py), the transfer of weights to it (weights.py) and bfloat16. Attention is sdpa.
"""
