"""Real short trainings with and without a planted fault, and what the diagnosis must say of each."""
