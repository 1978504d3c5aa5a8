"""Memory of a process and of its machine: the allocator, mapped files, limits of control groups."""
