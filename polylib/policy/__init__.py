"""Policies: one contract, an objective per algorithm, and a backend per framework."""
