"""The router process: decides which sequence computes what in each step, and sends the tokens to the HTTP workers.

Door: ``run.run``, the process entry point. ``scheduler`` and ``kv_cache`` are pure: no sockets, no clock, no torch.
"""
