"""The draft model: proposes tokens for sequences, beside the model that is served, in the same process.

Door: ``proposals.Proposals``.
"""
