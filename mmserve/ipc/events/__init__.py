"""Events for programs of other projects, over ZeroMQ: numbered batches that are published, and repeated on request.

Door: ``publisher.Publisher``. What is in a batch is its caller's business. Pure: ``numbers``, ``replay_buffer``.
"""
