"""Servers as replicas of Ray Serve: Ray places, watches and replaces them; no request goes through it.

``router`` is the one file that knows Ray's router (an alpha interface: ``ray[serve]==2.60.*``). Doors: ``apps`` (for
``serve deploy``), ``run`` (for ``mmserve serve --replicas``). Needs ``pip install 'mmserve[ray]'``.
"""
