"""Checkpoint directories -> loaded models. Doors: ``load`` (decoder, vision tower) and ``registry`` (families)."""
