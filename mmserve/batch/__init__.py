"""Batches in OpenAI's format: files of requests in, files of responses out. Doors: ``run`` (run_batch), ``source``,
``output``. Knows no server: who calls it says how a request is answered."""
