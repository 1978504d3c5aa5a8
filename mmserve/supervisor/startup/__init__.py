"""Work before any process starts: look at the machine, plan the deployment, listen, make the run directory.

Doors: ``plan.make``, ``machine.look``, ``listen.listen``, ``run_directory``, ``kernel_build.building``.
"""
