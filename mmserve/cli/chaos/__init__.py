"""A drill for operators: clients stream answers while processes of the server are killed, frozen and sent garbage.

Door: ``drill.run``. The command ``mmserve chaos`` and ``make chaos`` both use it.
"""
