"""The command `chat`: questions and answers, turn by turn."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from dllm_decode.cli.files import read_input
from dllm_decode.cli.models import Speaker, load_speaker
from dllm_decode.cli.plugins import parse_sampler


@dataclass
class Conversation:
    """A conversation with a model, and the commands that change it.

    Attributes:
        turns: Questions and answers so far, after the system text if there is one.
        is_live: Show answers while they are decoded.
    """

    speaker: Speaker
    turns: list[Mapping[str, str]] = field(default_factory=list)
    is_live: bool = False

    def ask(self, text: str) -> str:
        """Answers a question, writes the answer, and returns its cost.

        The question is forgotten if it was not answered.
        """
        turns = [*self.turns, {"role": "user", "content": text}]
        try:
            out = self.speaker.answer(turns, live=self.is_live)
        except KeyboardInterrupt:
            return "Stopped; the question is forgotten."
        answer = out.texts[0]
        if not self.is_live:
            sys.stdout.write(f"{answer}\n")
        self.turns = [*turns, {"role": "assistant", "content": answer}]
        return out.cost

    def help(self, _: str) -> str:
        """Returns the list of commands."""
        return "\n".join(f"{usage:16} {effect}" for usage, effect in COMMANDS)

    def reset(self, _: str) -> str:
        """Forgets all questions and answers, but not the system text."""
        self.turns = [turn for turn in self.turns if turn["role"] == "system"]
        return "The conversation begins anew."

    def undo(self, _: str) -> str:
        """Forgets the last question and its answer."""
        if not self.turns or self.turns[-1]["role"] == "system":
            return "There is nothing to undo."
        self.turns = self.turns[:-2]
        return "The last question and its answer are forgotten."

    def system(self, text: str) -> str:
        """Begins anew with a system text, or without one if the text is empty."""
        self.turns = [{"role": "system", "content": text}] if text else []
        return f"The conversation begins anew, {'with' if text else 'without'} a system text."

    def sampler(self, text: str) -> str:
        """Names the sampler, after taking another one if there is a text."""
        if text:
            self.speaker = self.speaker._replace(sampler=parse_sampler(text))
        return f"The sampler is {self.speaker.sampler}."

    def save(self, text: str) -> str:
        """Writes the conversation as JSON, as `generate` takes it."""
        if not text:
            return "A file must be named: /save FILE"
        written = json.dumps(self.turns, ensure_ascii=False, indent=2)
        Path(text).write_text(f"{written}\n", encoding="utf-8")
        return f"{len(self.turns)} turns are in {text}."

    def respond(self, text: str) -> str:
        """Obeys a command or answers a question, and returns a message for the user."""
        name, _, rest = text.partition(" ")
        act = _ACTIONS.get(name)
        if act is None and name.startswith("/"):
            return f"There is no command {name}; /help lists them."
        try:
            return self.ask(text) if act is None else act(self, rest.strip())
        except (ValueError, OSError) as error:
            # For example a sampler that does not fit the model: the conversation goes on.
            return str(error)


COMMANDS = (
    ("/undo", "forget the last question and its answer"),
    ("/reset", "forget all questions and answers, but not the system text"),
    ("/system TEXT", "begin anew with a system text; without TEXT: with none"),
    ("/sampler EXPR", "use another sampler, such as LocalLeap(); without EXPR: name it"),
    ("/save FILE", "write the conversation as JSON, which generate() takes"),
    ("/help", "show this list"),
    ("/exit", "end the conversation, as Ctrl-D does; Ctrl-C stops an answer"),
)
"""Each command, and what it does."""

_ACTIONS: Mapping[str, Callable[[Conversation, str], str]] = {
    "/help": Conversation.help,
    "/undo": Conversation.undo,
    "/reset": Conversation.reset,
    "/system": Conversation.system,
    "/sampler": Conversation.sampler,
    "/save": Conversation.save,
}


def chat(options: Namespace) -> int:
    """Answers turn by turn, until /exit or the end of the input."""
    console = Console(stderr=True, highlight=False)
    speaker = load_speaker(options)
    if not speaker.tokenizer.chat_template:
        raise ValueError(
            f"A chat needs a chat template, got none in the tokenizer of {options.model}. "
            "Use dllm-decode generate --plain."
        )
    # Refuses what does not fit together before a question is typed.
    speaker.decoder(speaker.sampler, speaker.config)
    conversation = Conversation(speaker, is_live=sys.stdout.isatty())
    if sys.stdin.isatty():
        console.print("Ask a question; /help lists the commands.", style="dim")
    ask = partial(input, "> " if sys.stdin.isatty() else "")
    while True:
        try:
            text = read_input(ask).strip()
        except EOFError:
            return 0
        if text == "/exit":
            return 0
        if text:
            told = conversation.respond(text)
            console.print(told, style="dim", markup=False, soft_wrap=not console.is_terminal)
