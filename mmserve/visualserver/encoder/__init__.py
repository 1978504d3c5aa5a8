"""The process of ``mmserve encoder``: a vision tower for the visual servers of other machines. Door: ``run.run``."""
