"""One rank's work on a step: its sequences by slot, the tensors of a forward pass, image embeddings, sampling.

Door: ``model_runner.ModelRunner``.
"""
