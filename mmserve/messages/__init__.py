"""Messages between processes: one frozen msgspec struct a message, one module a receiver or subject. Plain data.

Every module may be imported by every process.
"""
