"""An HTTP worker: OpenAI's protocol on one side, generate requests to the engine on the other.

Packages in the order of a request: ``http`` (connection, body), ``api`` (protocols), ``limits`` (admission, bytes),
``request`` (the request's task), ``media``, ``mm_cache``, ``prompt``, ``engine``, ``output``. Imports go one way; the
order is in .importlinter.toml.

Door: ``run.run(process)`` for the supervisor.
"""
