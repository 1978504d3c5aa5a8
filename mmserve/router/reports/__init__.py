"""Tells fronts what this server holds of what they have sent, and how loaded it is (``cluster/scale/reports``).

Door: ``feed.ReportFeed``. ``held_names`` and ``reporter`` are pure; ``publisher`` has the socket.
"""
