"""One module a model family: its tensor names, its model classes and its rule for rotary positions.

Each defines ``FAMILY``. ``loader.registry`` finds it by name and imports it on first use.
"""
