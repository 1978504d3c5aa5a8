"""Chat messages and leased images to token ids. Doors: ``builder`` (PromptBuilder), ``media_spans`` (leased_again)."""
