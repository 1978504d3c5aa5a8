"""What config.json and the files beside it say, as far as families have it in common."""
