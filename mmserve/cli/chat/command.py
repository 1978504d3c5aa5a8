"""``mmserve chat``: its flags, and the choice between one question and a conversation."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from mmserve.runtime.errors import StartupError

if TYPE_CHECKING:
    from mmserve.cli.chat.conversation import Conversation
    from mmserve.cli.chat.screen import Screen
    from mmserve.client.completions import CompletionsClient

_DESCRIPTION = """\
Chat with a model in the terminal. Without --url, a server with the packaged model is started for this chat and
stopped after it. With a question on the command line or from a pipe, print the answer alone:

  mmserve chat
  mmserve chat --url http://localhost:8000
  echo "What colour is the circle?" | mmserve chat --image picture.png"""
_EPILOG = """\
The server's key is read from MMSERVE_API_KEY or OPENAI_API_KEY; OPENAI_BASE_URL stands for --url.
The last conversation and the typed lines are kept in ~/.local/state/mmserve, unless --no-history is given."""


def add_chat(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "chat",
        help="chat with a model in the terminal",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", nargs="*", help="print the answer to it and leave")
    parser.add_argument("--url", help="server to talk to, with or without /v1; default: start one")
    parser.add_argument("--model", help="name of the model; default: the server's first, or llava on a new server")
    parser.add_argument("-s", "--system", default="", help="system prompt")
    parser.add_argument("--image", action="append", default=[], metavar="PLACE", help="path or URL; may be repeated")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="field of the requests, as temperature=0"
    )
    parser.add_argument("-c", "--continue", action="store_true", dest="go_on", help="go on with the last conversation")
    parser.add_argument("--no-history", action="store_true", help="keep neither the conversation nor typed lines")
    parser.add_argument("--stats", action="store_true", help="show times and tokens under each answer")
    parser.add_argument("--json", action="store_true", help="of one question: print answer, usage and times as JSON")


def chat(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if the server refuses or ends. Raises StartupError."""
    # Imported here: these would slow down --help.
    from mmserve.cli.chat.conversation import ChatError
    from mmserve.cli.chat.screen import Screen
    from mmserve.client.completions import ServerError

    one = bool(arguments.question) or not sys.stdin.isatty()
    question = " ".join(arguments.question) or ("" if not one else sys.stdin.read().strip())
    if one and not question:
        raise StartupError("there is no question: give it on the command line or through a pipe")
    screen = Screen(show_reasoning=not one)
    try:
        conversation = _conversation(arguments)
        with contextlib.ExitStack() as stack:
            client, model = _connect(arguments, screen, stack)
            if one:
                return _ask_once(client, model, conversation, question, arguments, screen)
            _converse(client, model, conversation, arguments, screen)
    except (ChatError, ServerError) as error:
        screen.error(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _conversation(arguments: argparse.Namespace) -> Conversation:
    from mmserve.cli.chat.conversation import Conversation
    from mmserve.cli.chat.store import ChatStore

    conversation = ChatStore().load_last() if arguments.go_on else Conversation()
    conversation.system = arguments.system or conversation.system
    for setting in arguments.set:
        name, equals, value = setting.partition("=")
        if not equals:
            raise StartupError(f"--set {setting}: write it as NAME=VALUE")
        conversation.set(name, value)
    return conversation


def _connect(
    arguments: argparse.Namespace, screen: Screen, stack: contextlib.ExitStack
) -> tuple[CompletionsClient, str]:
    from mmserve.client.completions import CompletionsClient, ServerError
    from mmserve.client.own_server import own_server

    url = arguments.url or os.environ.get("OPENAI_BASE_URL")
    own = not url
    key = os.environ.get("MMSERVE_API_KEY") or os.environ.get("OPENAI_API_KEY")
    if not url:
        name = arguments.model or "llava"
        screen.note(f"starting a server with {name} for this chat (the first start on a machine takes longer)")
        server = stack.enter_context(own_server(name))
        url, key = server.url, server.api_key
    client = stack.enter_context(CompletionsClient(url, key))
    served = client.models()
    if not served:
        raise ServerError(f"{url} serves no model")
    # A server that was started serves one model, whose name need not be the path that was given.
    return client, served[0] if own or not arguments.model else arguments.model


def _ask_once(
    client: CompletionsClient,
    model: str,
    conversation: Conversation,
    question: str,
    arguments: argparse.Namespace,
    screen: Screen,
) -> int:
    from mmserve.cli.chat import pictures
    from mmserve.cli.chat.answer import Answer

    conversation.ask(question, [pictures.load(place).url for place in arguments.image])
    answer = Answer()
    answer.read(client.stream(conversation.body(model)), lambda text: None if arguments.json else screen.text(text))
    if arguments.json:
        print(json.dumps(answer.to_dict(), ensure_ascii=False))
    else:
        screen.end_answer(answer, stats=arguments.stats)
    return 0


def _converse(
    client: CompletionsClient,
    model: str,
    conversation: Conversation,
    arguments: argparse.Namespace,
    screen: Screen,
) -> None:
    from mmserve.cli.chat.prompt import line_reader
    from mmserve.cli.chat.session import ChatSession
    from mmserve.cli.chat.store import ChatStore

    store = ChatStore()
    lines, keep = (None, _keep_nothing) if arguments.no_history else (store.lines, store.save_last)
    session = ChatSession(client, model, conversation, screen, line_reader(lines), keep, stats=arguments.stats)
    screen.note(f"{model} on {client.url}; /help lists the commands")
    for place in arguments.image:
        session.add_picture(place)
    session.run()


def _keep_nothing(conversation: Conversation) -> None:
    """For --no-history."""
