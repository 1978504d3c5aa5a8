"""A small server of chat completions around OpenVINO GenAI's continuous batching, which has no HTTP server of its own.

It runs in the peer's environment, so it uses the standard library, openvino_genai and tokenizers alone.
"""
