"""Which bytes of the arena are free, used or evictable, and which are evicted for new ones. Pure.

Doors: ``eviction.plan``, ``arena_map.ArenaMap``, ``eviction_queue.EvictionQueue``.
"""
