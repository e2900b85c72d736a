"""Environment packages of verifiers as environments."""
