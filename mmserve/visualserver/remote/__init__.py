"""Links to encoders on other machines: compressed pictures go out, embedding rows come straight into the arena.

Doors: ``encoders.Encoders``, which accepts encoders, and ``choice``. ``frames`` and ``streams`` are used by both ends.
"""
