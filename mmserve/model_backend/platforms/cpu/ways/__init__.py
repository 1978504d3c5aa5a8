"""The fastest of the ways that give the same bits, measured at first start. Doors: ``choose``, ``store.kept``."""
