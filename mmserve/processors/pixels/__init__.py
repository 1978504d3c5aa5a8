"""Steps that image processors share: parts of a picture, resizing, float values, patches and tiles.

The results are those of transformers' image processors with Pillow, bit for bit, in less memory.
"""
