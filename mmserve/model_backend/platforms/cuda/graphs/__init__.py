"""Decode steps as captured CUDA graphs. Door: ``decode.CapturedDecodes``."""
