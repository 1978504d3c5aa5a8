"""Cores: how many each process computes on, and whether it makes progress."""
