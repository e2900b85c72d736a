"""Places that run a job, one module each."""
