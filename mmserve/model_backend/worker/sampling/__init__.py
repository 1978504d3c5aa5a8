"""Logits -> tokens and log-probabilities, on rank 0.

Doors: ``sampler.Sampler`` and ``logprobs.ModelLogprobs``.
"""
