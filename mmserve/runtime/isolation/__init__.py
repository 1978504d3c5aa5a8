"""Work in a child process that may hang, crash or run out of memory without harm to its parent.

Doors: ``killable.KillableChild`` for the parent, ``serving.serve`` for the child. They exchange frames on pipes.
"""
