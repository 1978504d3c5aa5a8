"""Prompts with up to three pictures of different sizes: questions, training rows, and the stage that learns them."""
