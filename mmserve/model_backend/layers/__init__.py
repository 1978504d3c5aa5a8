"""Layers shared by language models and vision towers, sharded over tensor-parallel ranks.

A layer is built with a ``LayerContext``: the platform's operations and linear methods, dtype, device and ranks.
"""
