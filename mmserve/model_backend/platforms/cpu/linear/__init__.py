"""The kernels' layouts of weights, and the linear layers that multiply with them. Doors: ``packing``,
``checkpoint_linear``, ``gguf_linear``."""
