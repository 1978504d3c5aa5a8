"""Drafts: tokens that a sequence is likely to get next, found without a model. Steps compute several and verify them.

Door: ``drafter.Drafter``, and ``draft_source.DraftSource``, which a sequence keeps for it.
"""
