"""Calls to the table over Unix sockets: v1 (rpyc, one item a call) and v2 (msgpack frames, all items in one call).

Doors: ``services.serving`` on the server's side; ``v1.client``, ``v2.client`` and ``connection_pool`` on the client's.
"""
