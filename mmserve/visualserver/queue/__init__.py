"""Requests that wait for their images, for decode permits, and for a batch. Knows no decoder and no tower."""
