"""Continuous batching: plans one forward step at a time over the sequences of all clients.

Door: ``scheduler.Scheduler`` and ``scheduler.SchedulerConfig``.
"""
