"""Tells fronts what this server holds of what they have sent, and how loaded it is (``cluster/scale/reports``).

Door: ``feed.ReportFeed``. Pure: ``held_pictures``, ``held_beginnings``, ``reporter``. ``publisher`` has the
fronts' socket, ``arena_link`` the one from the cache server.
"""
