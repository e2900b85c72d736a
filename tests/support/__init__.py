LOG_VARIABLE = "XP_TEST_SIDE_EFFECTS"
"""File to which a served environment appends what it does: here, since a server imports nothing of its clients."""
