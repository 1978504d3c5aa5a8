"""OpenAI's protocol. Doors: ``chat.CHAT``, ``errors.error_body``, ``fields.ChatRequest``."""
