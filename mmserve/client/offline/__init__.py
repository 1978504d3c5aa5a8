"""Answers inside a program, from a server of its own. Doors: ``llm`` (LLM), ``async_llm`` (AsyncLLM)."""
