"""Vision towers and projectors from the GGUF file beside the language model's (``mmproj-*.gguf``), one module a kind.

Doors: ``files`` (which file it is), ``table`` (what it is). Format: tools/mtmd/clip-impl.h of llama.cpp.
"""
