"""Decode steps as captured CUDA graphs. Door: ``executor.GraphExecutor``."""
