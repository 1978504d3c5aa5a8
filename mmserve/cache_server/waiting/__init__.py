"""What waits in the cache server: calls without an answer yet, allocations for space, decoding for a permit."""
