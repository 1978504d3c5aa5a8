"""What the user asked for (``config``, ``options``) and, in ``resolved``, what start-up decided."""
