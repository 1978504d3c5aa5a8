"""The web page at ``/``: its files in ``static/``, which ``web/`` makes, and the routes that send them."""
