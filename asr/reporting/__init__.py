"""Results and costs of runs: stored, compared with one another and with the papers."""
