"""Attention over the paged KV cache: the backend interface (``interface``) and its torch reference (``sdpa``).

Faster backends stand beside the platform they need, such as ``platforms/cpu/attention.py``.
"""
