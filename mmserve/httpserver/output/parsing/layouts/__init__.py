"""How calls are written between their markers, one module for each way. Pure."""
