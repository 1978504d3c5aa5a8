"""Triton kernels, one kind a file. Only modules of the CUDA platform import them, when a kernel is needed: importing
them takes Triton, which a CPU build of torch lacks.

Where there is no GPU they run in Triton's interpreter (``TRITON_INTERPRET=1``), which multiplies bfloat16 wrongly: each
kernel has an argument ``UPCAST`` that makes products in float32 there.
"""

import os

# Multiplications and additions in one rounding, as ever. Triton 3.9 warns that 3.10 will not make them by itself.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
