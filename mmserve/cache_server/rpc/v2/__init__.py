"""Calls by msgpack frames, all items of a request in one."""
