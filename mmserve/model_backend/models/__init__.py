"""Language models: one file an architecture, all behind ``interface.DecoderModel``."""
