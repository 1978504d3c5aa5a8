"""Mistakes in the computation of model families, which the families' tests must notice.

``python -m tests.mutations [FAMILY ...]`` makes each of them in a copy of the sources and runs the family's tests.
``tests.mutation_score`` is another program: mutmut's score of the pure modules.
"""
