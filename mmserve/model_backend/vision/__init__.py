"""Vision towers with their projectors: one file an architecture. Used by the visual server."""
