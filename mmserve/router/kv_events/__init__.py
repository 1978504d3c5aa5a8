"""Tells routers of other projects what the prefix cache holds, in the form in which vLLM publishes it.

Door: ``feed.EventFeed``. ``recorder``, ``wire`` and ``replay_buffer`` are pure; ``publisher`` has the sockets.
"""
