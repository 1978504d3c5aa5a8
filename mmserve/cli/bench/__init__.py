"""The load generator for OpenAI-style servers. Doors: ``client`` (run, run_at), ``plan``, ``figures``, ``report``."""
