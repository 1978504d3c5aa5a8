"""CPUs: C++ kernels for float32 (``csrc``), oneDNN's packed products otherwise. Doors: ``platform``, ``build``."""
