"""HTTP/1.1 below the routes: uvicorn's server and protocol, request bodies, disconnects, middleware.

The only package that imports uvicorn or httptools.

Doors: ``uvicorn_server.UvicornServer``, ``middleware.RequestMiddleware``, ``auth.ApiKeyAuth``, ``body.read_body``.
"""
