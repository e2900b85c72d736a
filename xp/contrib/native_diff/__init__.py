"""`plan --native-diff FILE`: the keys of a public training script beside those of a plan."""
