"""Which replica a request is sent to, when several servers of one model stand behind one front.

Pure: no socket, no clock. Doors: ``cluster.Cluster``, which has what a front knows of its replicas and decides; and
``reports``, what a replica tells.
"""
