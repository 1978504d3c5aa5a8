"""More than one server, or more than one machine: what stands above, beside and between servers.

``front`` is one address for several servers, ``scale`` decides where it sends a request, ``on_ray`` runs servers as
replicas of Ray Serve, ``nodes`` links the machines of one server. Encoders on other machines are in ``visualserver``.
"""
