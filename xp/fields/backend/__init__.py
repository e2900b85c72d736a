"""The section `backend`: the trainer's own layout, and the engine."""
