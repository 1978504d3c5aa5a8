"""Image input: cut data: URLs out of a JSON body, fetch or decode each image, read its header, compute its content key.

Doors: ``reader`` (MediaReader), ``split_media`` (split_media), ``local`` (decode_small_images),
``content_key`` (second_key).
"""
