"""How a checkpoint's linear layers are quantized, as its config.json says. Doors: ``scheme`` and ``read``."""
