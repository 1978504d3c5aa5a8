"""Chat messages and leased images to token ids. Door: ``builder`` (PromptBuilder)."""
