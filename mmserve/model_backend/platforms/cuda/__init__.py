"""NVIDIA GPUs. Door: ``platform.CudaPlatform``."""
