"""A finished run done again: its episodes settled by another rule."""
