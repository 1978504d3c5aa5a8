"""Everything that depends on where a model runs: kernels, memory, threads, devices.

Doors: ``device.platform_for`` chooses a ``Platform`` (``interface``) once, when a process starts. ``reference``
computes everything in plain torch; ``cpu`` and ``cuda`` replace what they do better.
"""
