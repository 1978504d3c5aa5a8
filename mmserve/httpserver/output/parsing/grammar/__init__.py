"""Grammars that make a model call tools in its own format. Pure.

Door: ``tool_grammar`` (tool_grammar, optional_tool_grammar).
"""
