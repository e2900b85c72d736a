"""What is made of finished runs: evaluations and their statistics, the page, a run done again."""
