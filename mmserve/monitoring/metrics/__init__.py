"""Metrics of the server: the table of metrics, the client with which processes send samples, the metrics server.

Doors: ``client.MetricsClient`` and ``names.METRICS`` for every process; ``run.run(process)`` for the supervisor.
"""
