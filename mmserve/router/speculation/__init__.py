"""Drafts: tokens that a sequence is likely to get next, from the text before or from a draft model. Steps compute
several and verify them.

Door: ``drafter.Drafter``, and ``draft_source.DraftSource``, which a sequence keeps for it.
"""
