"""Vision towers as plain data, one module an architecture. ``checkpoint.spec.VisionSpec`` is any of them."""
