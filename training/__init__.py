"""Draws, trains, exports and judges the packaged `llava` model."""
