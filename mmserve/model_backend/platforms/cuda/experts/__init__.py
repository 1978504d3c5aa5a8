"""Mixtures of experts in launches that do not depend on what the router chooses. Door: ``choice.grouped_experts``."""
