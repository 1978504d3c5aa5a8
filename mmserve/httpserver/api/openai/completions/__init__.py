"""Legacy completions: the body, its prompts, the answer."""
