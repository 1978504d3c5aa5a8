"""GGUF files, as llama.cpp writes them, read as checkpoint directories. Door: ``directory``.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
