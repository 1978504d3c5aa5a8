"""One module for each step of the battery, with ``run(checks, settings)``."""
