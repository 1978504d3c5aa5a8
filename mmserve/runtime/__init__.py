"""Services of every process: errors, shortages, threads, startup times; logs, memory, cores, isolated children.

The lowest layer of mmserve. Every module may be imported from anywhere.
"""
