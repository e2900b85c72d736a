"""What developers of xp run and users do not; no part of the wheel."""
