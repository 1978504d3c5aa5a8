"""Communication between processes: the shared-memory arena, typed message links, internal addresses, status pages.

Doors: ``arena``, ``links.channel``, ``links.endpoints``, ``status_http``, and ``links.codec`` for the cache server's
transport.
"""
