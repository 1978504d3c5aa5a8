"""Notices children that exit or hang, and limits how often they are started again.

Doors: ``watch`` (exits, signals, reports), ``watchdog`` (stuck), ``start_limit``, ``restarts``.
"""
