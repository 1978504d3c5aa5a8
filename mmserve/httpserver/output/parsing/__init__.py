"""What a model wrote, read as text, reasoning and tool calls. Pure.

Doors: ``pieces`` (Text, Reasoning, CallStart, CallArguments, CallEnd, join).
"""
