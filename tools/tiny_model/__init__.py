"""Makes the model that xp ships: its tokenizer, its network, and a warm-up on scripted play."""
