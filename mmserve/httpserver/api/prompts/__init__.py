"""Routes that look at a prompt without an answer to it: ``/tokenize``, ``/detokenize``, ``.../render``."""
