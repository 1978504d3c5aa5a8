"""The sampler of rank 0, with grammars."""

from __future__ import annotations

from mmserve.config.resolved.deployment import Deployment
from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.sampling.grammar_compiler import GrammarCompiler
from mmserve.model_backend.worker.sampling.grammar_masks import GrammarMasks
from mmserve.model_backend.worker.sampling.sampler import Sampler


def make_sampler(deployment: Deployment, transfers: Transfers, choice: TokenSampling) -> Sampler:
    """``choice``: the platform's."""
    vocab_size = deployment.model.text.vocab_size
    grammars = GrammarMasks(
        GrammarCompiler(deployment.model),
        vocab_size,
        choice,
        deployment.cpu_threads,
        jumps=deployment.config.jump_forward,
    )
    return Sampler(vocab_size, choice, transfers, grammars, deployment.model.image_token_id)
