"""Tells routers of other projects what the prefix cache holds, in the form in which vLLM publishes it.

Door: ``feed.EventFeed``. ``recorder`` and ``wire`` are pure. The sockets: ``ipc/events``.
"""
