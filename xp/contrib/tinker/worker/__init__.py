"""Programs of backend=tinker, in the trainer's Python."""
