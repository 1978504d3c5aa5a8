"""Attention by Triton kernels. Door: ``backend.TritonAttention``."""
