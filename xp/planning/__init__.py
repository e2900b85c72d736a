"""RunSpec to Plan: backends, stages, batch shapes, steps, splits and memory."""
