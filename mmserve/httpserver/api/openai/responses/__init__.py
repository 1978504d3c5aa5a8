"""OpenAI's Responses: input items to a conversation, pieces of an answer to output items and numbered events."""
