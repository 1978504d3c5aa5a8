"""One module a model family: how its config.json is read. ``checkpoint.registry`` imports it on first use.

A text family defines ``Config``, a ``TextJson``. A family with a tower defines ``model``.
"""
