"""Kernels with inputs for them: step 2 compares them with float64. A new kernel joins by an entry in ``registry``."""
