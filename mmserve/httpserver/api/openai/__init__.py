"""OpenAI's protocol. Doors: ``chat.parse`` and ``chat.send``, ``errors.error_response``, ``fields.ChatRequest``."""
