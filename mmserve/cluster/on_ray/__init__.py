"""Servers as replicas of Ray Serve: Ray places, watches and replaces them; no request goes through it.

``router``, ``placement`` and ``apps`` know Ray's router (an alpha interface: ``ray[serve]==2.60.*``). Doors: ``apps``
(for ``serve deploy``), ``run`` (for ``mmserve serve --replicas``). Needs ``pip install 'mmserve[ray]'``.
"""
