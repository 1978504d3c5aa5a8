"""Models to measure: published shapes with random weights, and checkpoints whose answers are compared."""
