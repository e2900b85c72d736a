"""The table of the spec's fields: what each trainer receives of a field, what it refuses, and what is xp's own."""
