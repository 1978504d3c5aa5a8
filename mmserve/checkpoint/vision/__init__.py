"""Vision towers as plain data, one module an architecture, with its ``vision_config`` in config.json where several
families have it. ``checkpoint.spec.VisionSpec`` is any of them."""
