"""Checkpoint directories: finding one, and reading its JSON files into a ModelSpec, without torch.

Doors: ``locate``, ``load`` and ``spec``.
"""
