"""The command line: one file a command, or one folder, whose ``command`` reads the arguments. Door: ``main`` (main).

``bench``, ``chaos``, ``chat``, ``doctor`` and ``plan`` are folders; other modules of theirs know no command line.
"""
