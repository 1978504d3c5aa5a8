"""CPUs: C++ kernels (``csrc``), oneDNN's packed products without a compiler. Doors: ``platform``, ``library.build``."""
