"""Services of every process: errors, logging, memory settings, threads, startup times.

The lowest layer of mmserve. Every module may be imported from anywhere.
"""
