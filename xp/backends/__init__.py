"""Trainers, one folder each: `control` writes their jobs, `worker` runs inside them."""
