"""Sampling with transformers, vLLM and SGLang, in a process or on a server; for training and evaluation."""
