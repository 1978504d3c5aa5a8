"""config.json of models that take pictures, one module a family."""
