"""Helpers that users import by path."""
