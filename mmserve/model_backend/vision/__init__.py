"""Vision towers with their projectors: one file an architecture; ``parts`` has what several share."""
