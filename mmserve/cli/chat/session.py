"""An interactive chat: reads lines, runs commands, streams answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mmserve.cli.chat import pictures, store
from mmserve.cli.chat import slash_commands as commands
from mmserve.cli.chat.answer import Answer
from mmserve.cli.chat.conversation import ChatError, Conversation
from mmserve.cli.chat.pictures import Picture
from mmserve.cli.chat.screen import Screen
from mmserve.client.completions import CompletionsClient, ServerError

_QUOTES = '"""'


class ChatSession:
    """``read_line``: shows a prompt and returns a line; raises KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""

    def __init__(
        self,
        client: CompletionsClient,
        model: str,
        conversation: Conversation,
        screen: Screen,
        read_line: Callable[[str], str],
        on_change: Callable[[Conversation], object] = lambda conversation: None,
        *,
        stats: bool = False,
    ) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._screen = screen
        self._read_line = read_line
        self._on_change = on_change
        self._stats = stats
        self._pictures: list[Picture] = []
        """For the next question."""

    def run(self) -> None:
        """Until /bye or Ctrl-D."""
        while (text := self._read()) is not None:
            try:
                command = None if "\n" in text else commands.parse(text)
                if command is None:
                    self._ask(text)
                elif command.name == "bye":
                    return
                else:
                    self._run_command(command.name, command.argument)
            except (ChatError, ServerError) as error:
                self._screen.error(str(error))
            except OSError as error:  # of a file that a command names
                self._screen.error(f"{error.filename}: {error.strerror}")

    def add_picture(self, place: str) -> None:
        """Add a picture to the next question. Raises ChatError."""
        picture = pictures.load(place)
        self._pictures.append(picture)
        self._screen.note(f"[{picture.label}]")

    def _read(self) -> str | None:
        """The next line, or several between quotes; None at the end."""
        while True:
            try:
                text = self._read_line(">>> ")
                if text.lstrip().startswith(_QUOTES):
                    text = text.lstrip()[len(_QUOTES) :]
                    while _QUOTES not in text:
                        text += "\n" + self._read_line("... ")
                    text = text[: text.index(_QUOTES)]
            except KeyboardInterrupt:
                self._screen.note("(/bye or Ctrl-D to leave)")
                continue
            except EOFError:
                return None
            if text.strip():
                return text.strip()

    def _ask(self, text: str) -> None:
        text, paths = pictures.split_paths(text)
        for path in paths:
            self.add_picture(path)
        if not text:
            return
        asked, self._pictures = self._pictures, []
        self._conversation.ask(text, [picture.url for picture in asked])
        try:
            self._answer()
        except ServerError:
            # The question can be changed and asked again.
            self._conversation.undo()
            self._pictures = asked
            raise

    def _answer(self) -> None:
        """Stream an answer to the last question. Ctrl-C ends it; what has been written is kept."""
        answer = Answer()
        events = self._client.stream(self._conversation.body(self._model))
        try:
            answer.read(events, self._screen.text, self._screen.reasoning)
        except KeyboardInterrupt:
            self._screen.text("\n")
            self._screen.note("[stopped]")
        except ServerError:
            if not answer.text:
                raise
            self._screen.text("\n")
            self._screen.error("the answer is not complete: the connection was lost. /retry asks again")
        else:
            self._screen.end_answer(answer, stats=self._stats)
        finally:
            events.close()
        self._conversation.answered(answer.text)
        self._on_change(self._conversation)

    def _run_command(self, name: str, argument: str) -> None:
        conversation, screen = self._conversation, self._screen
        match name:
            case "image":
                self.add_picture(pictures.typed_place(argument))
            case "system":
                conversation.system = argument
            case "set" if argument:
                field, _, value = argument.partition(" ")
                conversation.set(field, value.strip())
            case "set":
                screen.note(json.dumps(conversation.settings, ensure_ascii=False))
            case "schema":
                conversation.schema = _schema(argument) if argument else None
            case "retry":
                conversation.retry()
                self._answer()
            case "undo":
                conversation.undo()
            case "clear":
                conversation.messages.clear()
                self._pictures.clear()
                screen.note("[all is forgotten]")
            case "show":
                screen.conversation(conversation.messages)
            case "stats":
                self._stats = not self._stats
                screen.note(f"[times are {'shown' if self._stats else 'no longer shown'}]")
            case "save":
                store.write(Path(argument).expanduser(), conversation)
                screen.note(f"[saved to {argument}]")
            case "load":
                self._conversation = store.read(Path(argument).expanduser())
                screen.note(f"[{len(self._conversation.messages)} messages; /show shows them]")
            case "help":
                screen.note(commands.help_text())


def _schema(path: str) -> dict[str, object]:
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except ValueError as error:
        raise ChatError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ChatError(f"{path}: a schema is an object")
    return found
