"""One address for several servers of one model: sends each request where its pictures are, and goes on with a stream at
another server when one dies.

Doors: ``run`` (the process of ``mmserve front``), ``app`` (the ASGI app).
"""
