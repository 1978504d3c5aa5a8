"""Image files before a model family sees them: headers, their limits, orientation. Door: ``picture``."""
