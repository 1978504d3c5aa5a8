"""Health of the server: heartbeats of all processes, answered as ``/live``, ``/ready`` and ``/health``.

Doors: ``heartbeat.HeartbeatSender`` for every process that sends heartbeats; ``run.run(process)`` for the supervisor.
"""
