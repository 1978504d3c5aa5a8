"""What a model wrote, read as text, reasoning and tool calls. Pure.

Doors: ``pieces`` (Text, Reasoning, CallStart, CallArguments, CallEnd, join), ``machine`` (OutputMachine), ``formats``
(choose, Format, starts_in_reasoning), ``response_template`` (declared_format).
"""
