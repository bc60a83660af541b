"""The command `chat`: questions and answers, turn by turn."""

import importlib
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial

from rich.console import Console

from dllm_decode.cli.listing import SAID
from dllm_decode.cli.model_setup import ModelSetup, load_setup
from dllm_decode.settings.files import read_input
from dllm_decode.settings.plugins import parse
from samplers import Sampler


@dataclass
class Conversation:
    """A conversation with a model, and the commands that change it.

    Attributes:
        turns: Questions and answers so far, after the system text if there is one.
        is_live: Show answers while they are decoded.
    """

    setup: ModelSetup
    turns: list[Mapping[str, str]] = field(default_factory=list)
    is_live: bool = False

    def ask(self, text: str) -> str:
        """Answers a question, writes the answer, and returns its cost."""
        turns = [*self.turns, {"role": "user", "content": text}]
        try:
            out = self.setup.answer(turns, live=self.is_live)
        except KeyboardInterrupt:
            return "Stopped; the question is forgotten."
        answer = out.texts[0]
        if answer and not self.is_live:
            sys.stdout.write(f"{answer}\n")
        self.turns = [*turns, {"role": "assistant", "content": answer}]
        if not answer.strip():
            return f"The answer is empty: the model ended it at once. {out.cost}"
        return out.cost

    def help(self, _: str) -> str:
        """Returns the list of commands."""
        return "\n".join(f"{usage:16} {effect}" for usage, effect in COMMANDS)

    def history(self, _: str) -> str:
        """Returns the questions, each after a prompt as it was typed, and the answers so far."""
        marks = {"system": "system: ", "user": "> "}
        said = [f"{marks.get(turn['role'], '')}{turn['content']}" for turn in self.turns]
        return "\n".join(said) or "There are no questions and answers yet."

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
        """Returns the name of the sampler; a text first replaces the sampler."""
        if text:
            self.setup = self.setup._replace(sampler=parse(text, Sampler))
        return f"The sampler is {self.setup.sampler}."

    def respond(self, text: str) -> str:
        """Runs a command or answers a question, and returns a message for the user."""
        name, _, rest = text.partition(" ")
        act = _ACTIONS.get(name)
        if act is None and name.startswith("/"):
            close = get_close_matches(name, [*_ACTIONS, "/exit"], n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            return f"There is no command {name}; {meant}/help lists them."
        try:
            return self.ask(text) if act is None else act(self, rest.strip())
        except (ValueError, OSError) as error:
            # For example a sampler that does not fit the model: the conversation goes on.
            return str(error)


COMMANDS = (
    ("/history", "show the questions and answers so far"),
    ("/undo", "forget the last question and its answer"),
    ("/reset", "forget all questions and answers, but not the system text"),
    ("/system TEXT", "begin anew with a system text; without TEXT: with none"),
    ("/sampler EXPR", "use another sampler, such as LocalLeap(); without EXPR: name it"),
    ("/help", "show this list"),
    ("/exit", "end the conversation, as Ctrl-D does; Ctrl-C stops an answer"),
)
"""Each command, and what it does."""

_ACTIONS: Mapping[str, Callable[[Conversation, str], str]] = {
    "/help": Conversation.help,
    "/history": Conversation.history,
    "/undo": Conversation.undo,
    "/reset": Conversation.reset,
    "/system": Conversation.system,
    "/sampler": Conversation.sampler,
}


def chat(options: Namespace) -> int:
    """Answers turn by turn, until /exit or the end of the input."""
    console = Console(stderr=True, highlight=False)
    setup = load_setup(options)
    if not setup.tokenizer.chat_template:
        raise ValueError(
            f"A chat needs a chat template, got none in the tokenizer of {options.model}. "
            "Use dllm-decode generate --plain."
        )
    # Plug-ins and options that do not fit together are refused before a question is typed.
    setup.decoder(setup.sampler, setup.config)
    # Warn of words that the model does not know at every question, not only at the first one.
    warnings.simplefilter("always")
    conversation = Conversation(setup, is_live=sys.stdout.isatty())
    is_typed = sys.stdin.isatty()
    example = _begin(console, setup.source) if is_typed else ""
    for text in _lines(console, is_typed=is_typed):
        if text == "/exit":
            break
        if not text and example and not conversation.turns:
            console.print(example, markup=False)
            text = example
        if text:
            message = conversation.respond(text)
            console.print(message, style="dim", markup=False, soft_wrap=not console.is_terminal)
    return 0


def _begin(console: Console, model: str) -> str:
    """Prints how to talk with a model, and returns an example question; "" if none is known."""
    # With readline, typed lines can be edited and recalled; not every system has the module.
    with suppress(ImportError):
        importlib.import_module("readline")
    intro = SAID["chats"].get(model, {"said": "Ask a question.", "example": ""})
    console.print(f"{intro['said']} /help lists the commands.", style="dim")
    if intro["example"]:
        console.print("Press Enter to ask this one:", intro["example"], style="dim", markup=False)
    return str(intro["example"])


def _lines(console: Console, *, is_typed: bool) -> Iterator[str]:
    """Yields lines until the input ends; on a terminal, only a second Ctrl-C in a row raises."""
    ask, is_warned = partial(input, "> " if is_typed else ""), False
    while True:
        try:
            text = read_input(ask).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if is_warned or not is_typed:
                raise
            is_warned = True
            console.print("\nCtrl-C again, or /exit, ends the chat.", style="dim")
            continue
        is_warned = False
        yield text
