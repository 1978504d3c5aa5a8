"""One request that a front forwards: what it needs, its headers, the memory that it keeps, how far its stream has come.

Door: ``forwarded``. Pure: ``wants``, ``content``, ``headers``, ``progress``.
"""
