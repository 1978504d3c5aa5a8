"""Limits of one HTTP worker: requests in flight (``admission``), bytes in memory (``reservations``), bytes of one
request's images (``media_budgets``), memory and descriptors of the machine (``shortages``).
"""
