"""Measure what the product costs and how well it recognizes; a script answers one question."""
