"""HTTP routes: one package for each protocol that generates text, and the routes for operators."""
