"""Grammars of llguidance that constrain an answer: made from schemas, regular expressions and choices, and validated.

A grammar is text: llguidance's JSON, or Lark in its dialect. ``model_backend`` compiles it for the served vocabulary.
"""
