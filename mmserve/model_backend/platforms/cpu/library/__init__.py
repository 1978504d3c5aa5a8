"""The shared object of the C++ kernels: of the wheel, the cache, or the compiler. Doors: ``build``, ``levels``."""
