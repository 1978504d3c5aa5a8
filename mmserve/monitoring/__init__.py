"""What is known of a running server: ``health`` (what lives and is ready), ``metrics`` (numbers and states)."""
