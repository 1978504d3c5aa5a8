"""One request from admission to its end: its task, its memory, its path through the services, its metrics.

Doors: ``task.RequestTask``, ``task.RequestTasks`` and ``resources.RequestResources``; ``path.RequestPath`` for the
worker's context.
"""
