"""Task folders in Harbor's format: the task, the sandbox in which commands run, and the verifier's reward."""
