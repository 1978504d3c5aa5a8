"""Token ids from the engine to text: detokenization, stop strings, logprobs, and the stream that a response reads.

Doors: ``detokenizer`` (Detokenizer), ``deltas`` (DeltaStream), ``vocabulary`` (Vocabulary), ``logprobs``
(TokenLogprobs, LogprobEntry).
"""
