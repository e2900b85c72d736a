"""Task folders in Harbor's format: the task, the sandbox of its commands, and the verifier's reward."""
