"""Mutated inputs from a fixed seed: ``python -m tests.fuzz`` runs all of them, the test suite a small sample.

Each module has ``run(count)``: it tries ``count`` inputs of each of its kinds, and raises AssertionError with the
number of the first one that is not handled as it should. ``python -m tests.fuzz`` lists the modules.
"""
