"""``mmserve chat``: a conversation with any OpenAI-style server in a terminal, or one question from a pipe."""
