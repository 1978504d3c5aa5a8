"""Vision towers that several families use: how config.json describes them, and what is read from it."""
