"""Starts, watches, restarts, drains and stops the processes of one server. Door: ``run`` (serve)."""
