"""Makes the model with eyes that xp ships: a tiny Qwen2-VL, and a warm-up on pictures of shapes."""
