"""A plan becomes a run: attempts, records, resume, sweeps."""
