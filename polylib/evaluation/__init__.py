"""Collecting experience and what is computed from it."""
