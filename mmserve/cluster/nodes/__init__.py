"""Links between the machines of one server: plans and embedding rows go out to the ranks of other nodes.

Doors: ``run.run_head`` on node 0, ``run.run_node`` on each other one, the entry points of two processes of the engine.
Each ends when a link is lost, and the engine restarts on both sides as it does on one machine.
"""
