"""Layers whose weights and inputs are multiplied in FP8 (e4m3) by a GPU's FP8 units."""
