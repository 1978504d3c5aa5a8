"""Using a server from another program: starting one of one's own, and chat completions over HTTP.

``offline`` is what ``from mmserve import LLM`` offers.
"""
