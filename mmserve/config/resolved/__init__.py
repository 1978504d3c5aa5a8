"""What start-up decided: ``deployment`` for all processes, ``process`` for one of them, and their arithmetic."""
