"""Visual server: decodes images, encodes them with the vision tower and tells the router of each.

Door: ``run.run(process)``, started by the supervisor.
"""
