"""Several machines on one: servers in network, process and mount namespaces of their own, fronts before them, faults.

``python -m benchmarks.nodes`` needs root and a kernel that makes namespaces.
"""
