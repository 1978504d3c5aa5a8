"""Chat completions: the body, its messages and tools, the answer."""
