"""Attention by FlashInfer's kernels, an optional package. Door: ``choice.flashinfer_attention``."""
