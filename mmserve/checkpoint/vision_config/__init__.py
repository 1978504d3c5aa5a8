"""``vision_config`` in config.json, one module a vision transformer. Several families use each."""
