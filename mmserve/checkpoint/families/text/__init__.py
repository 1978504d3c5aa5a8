"""config.json of text models, one module a family."""
