"""A checkpoint's chat template, rendered within limits. Door: ``chat_template``.

``variables`` and ``input`` are what it is given; ``sandbox``, ``limits``, ``filters`` and ``checks`` bound its work.
"""
