"""``mmserve doctor``: looks at the machine, the installation, and a running server, and says what to do."""
