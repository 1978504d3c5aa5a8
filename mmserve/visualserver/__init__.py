"""Visual server: decodes images, encodes them with the vision tower and forwards complete requests to the router.

Door: ``run.run(process)``, started by the supervisor.
"""
