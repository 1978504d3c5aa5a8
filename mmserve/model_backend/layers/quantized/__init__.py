"""The tensors in which quantized checkpoints store a linear layer, and the weights that they stand for.

Doors: ``stored`` (a layer's tensors by its scheme) and ``matrix``.
"""
