"""Calls by rpyc, one item each, as LightLLM had them."""
