"""Stored responses: what clients may continue or read again. One SQLite file, shared by all HTTP workers."""
