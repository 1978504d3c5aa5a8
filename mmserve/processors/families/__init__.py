"""One module a model family, or a few families that process pictures alike. ``processors.registry`` imports it.

Each defines ``processor(model: ModelSpec) -> ImageProcessor``, which reads the checkpoint's settings.
"""
