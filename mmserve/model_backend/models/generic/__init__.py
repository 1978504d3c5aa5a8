"""Models that transformers' modules compute, for architectures without a family here (docs/design/transformers.md).

Only ``describe`` and ``load`` are called from outside. transformers is imported nowhere else in mmserve.
"""
