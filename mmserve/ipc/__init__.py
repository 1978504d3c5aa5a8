"""Communication between processes: the shared-memory arena, typed message links, internal addresses, status pages.

Doors: ``arena``, ``channel``, ``endpoints``, ``status_http``, and ``codec`` for the cache server's transport.
"""
