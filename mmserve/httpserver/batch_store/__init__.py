"""Uploaded files and batches, in a directory that outlives the server: one SQLite file, and a file for each content.
Shared by all HTTP workers. Doors: ``store`` (BatchStore), ``leader``."""
