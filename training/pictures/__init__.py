"""Scenes and their pictures."""
