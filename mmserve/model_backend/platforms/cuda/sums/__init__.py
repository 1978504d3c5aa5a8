"""How tensor-parallel ranks on GPUs of one machine add up. Door: ``fastest.fastest_sums``."""
