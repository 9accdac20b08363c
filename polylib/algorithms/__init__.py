"""Algorithms, one folder each, and what they share: config, algorithm, Tune adapter, registry."""
