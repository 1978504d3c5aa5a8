"""Anthropic's protocol. Doors: ``messages.MESSAGES``, ``count_tokens.count_routes``, ``errors``."""
