"""Trains a small Qwen3-VL on the same drawings: pictures of any size, three axes of positions, DeepStack."""
