"""Tasks of inspect_ai as environments."""
