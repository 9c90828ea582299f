"""Factorization of trained weights."""
