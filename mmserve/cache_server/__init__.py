"""The cache server: owns the table of the arena's extents and leases, and the decode permits.

Doors: ``client`` for other processes, ``run`` for the supervisor. See docs/design/allocation.md.
"""
