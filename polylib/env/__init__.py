"""Environments: making them, stepping them together, checking what they return."""
