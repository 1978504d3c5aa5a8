"""OpenAI's Files and Batch API. Doors: ``routes`` (batch_routes), ``runs`` (BatchRuns)."""
