"""Bookkeeping of KV blocks: which sequence uses them, which are cached for reuse, which are free.

Door: ``manager.KvCacheManager`` and its ``BlockTable`` and ``PrefixMatch``; ``listener.CacheListener`` is told what is
cached. The block pool and the prefix tree are private to the manager, apart from ``prefix_cache.Node``, which
identifies a cached block.
"""
