"""Replacements with which Slime's and Megatron-LM's own code trains on a machine without a GPU."""
