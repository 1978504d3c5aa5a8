"""Image processing of each model family, without torch: image files to pixels, image sizes to token counts.

Doors: ``registry.processor_for`` and ``picture.header``.
"""
