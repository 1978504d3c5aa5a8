"""What the user asked for (``config``, ``options``) and what start-up decided (``deployment``, ``process``)."""
