"""vLLM's extensions of OpenAI's fields: what they change in a call."""

from __future__ import annotations

from msgspec.structs import replace

from mmserve.httpserver.api.openai.fields import ExtensionFields
from mmserve.httpserver.api.openai.structured_outputs import requested_grammar
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.conversation import Conversation
from mmserve.httpserver.grammars import constrained
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest


def extended(call: GenerateCall, fields: ExtensionFields, model: ServedModel) -> GenerateCall:
    """``call`` as these fields want it. Raises InvalidRequest, which names the field."""
    if fields.prompt_logprobs is not None and call.stream:
        raise InvalidRequest("prompt_logprobs are part of a whole answer, not of a stream", param="prompt_logprobs")
    grammar, param = requested_grammar(fields)
    for prompt in call.prompts:
        if grammar and isinstance(prompt, Conversation) and prompt.tool_choice.mode == "required":
            raise InvalidRequest(f"an answer cannot both call a tool and fit {param}", param="tool_choice")
    return replace(
        call,
        sampling=constrained(call.sampling, grammar, model.eos_token_ids, param),
        grammar_param=param,
        bad_words=tuple(dict.fromkeys(fields.bad_words or ())),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt or "",
        view=replace(
            call.view,
            skip_special_tokens=fields.skip_special_tokens is not False,
            include_stop=bool(fields.include_stop_str_in_output),
            token_ids=bool(fields.return_token_ids),
        ),
        client_request_id=fields.request_id or "",
    )
