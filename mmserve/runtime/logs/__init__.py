"""Logging: the format of lines, where they are written, how often one may come, what of an exception they show."""
