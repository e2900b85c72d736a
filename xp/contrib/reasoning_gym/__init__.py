"""Procedural tasks of reasoning-gym as environments."""
