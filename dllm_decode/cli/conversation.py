"""The command `chat`: questions and answers, turn by turn."""

import importlib
import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial

from rich.console import Console

from dllm_decode import StepEvent
from dllm_decode.cli.listing import SAID
from dllm_decode.cli.speaker import Speaker, load_speaker
from dllm_decode.core.files import write_text
from dllm_decode.core.output import before_end
from dllm_decode.settings.addresses import read_option
from dllm_decode.settings.files import output_file, read_input
from dllm_decode.settings.options import OPTIONS
from dllm_decode.settings.plugins import parse
from samplers import Sampler


@dataclass
class Known:
    """An observer that keeps the tokens of an answer that are settled."""

    tokens: list[int] = field(default_factory=list)

    def __call__(self, event: StepEvent) -> None:
        after = event.after
        settled = after.tokens[0][after.in_answer[0] & ~after.unsettled[0]]
        self.tokens = before_end(settled.tolist(), after.eos_ids)


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

        An answer that Ctrl-C stops is kept as far as it was decoded.
        """
        turns = [*self.turns, {"role": "user", "content": text}]
        observer = Known()
        try:
            out = self.speaker.answer(turns, live=self.is_live, observers=[observer])
        except KeyboardInterrupt:
            answer = self.speaker.tokenizer.decode(observer.tokens, skip_special_tokens=True)
            if not answer:
                return "Stopped before the first word; the question is forgotten."
            message = "Stopped; the question and the text so far are kept, /undo forgets both."
        else:
            answer, message = out.texts[0], out.cost
            if not answer.strip():
                message = f"The answer is empty: the model ended it at once. {message}"
        if answer and not self.is_live:
            sys.stdout.write(f"{answer}\n")
        self.turns = [*turns, {"role": "assistant", "content": answer}]
        return message

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
            self.speaker = self.speaker._replace(sampler=parse(text, Sampler))
        return f"The sampler is {self.speaker.sampler}."

    def length(self, text: str) -> str:
        """Returns the greatest length of answers; a text first replaces it."""
        return self._option("gen_length", text, "Answers have at most {} tokens.")

    def temperature(self, text: str) -> str:
        """Returns the temperature; a text first replaces it."""
        return self._option("temperature", text, "The temperature is {:g}.")

    def _option(self, name: str, text: str, message: str) -> str:
        config = self.speaker.config
        if text:
            config = replace(config, **{name: read_option(name, text, OPTIONS[name])})
            # Refuses a length that does not fit the blocks.
            self.speaker.decoder(self.speaker.sampler, config)
            self.speaker = self.speaker._replace(config=config)
        return message.format(getattr(config, name))

    def save(self, text: str) -> str:
        """Writes the conversation as JSON that `generate` takes."""
        if not text:
            return "A file must be named: /save FILE"
        content = json.dumps(self.turns, ensure_ascii=False, indent=2)
        write_text(output_file("/save", text), f"{content}\n")
        return f"{len(self.turns)} turns are in {text}."

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
    ("/length N", "take another length of answers; without N: name it"),
    ("/temperature T", "take another temperature; without T: name it"),
    ("/save FILE", "write the conversation as JSON, which generate() takes"),
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
    "/length": Conversation.length,
    "/temperature": Conversation.temperature,
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
    # Plug-ins and options that do not fit together are refused before a question is typed.
    speaker.decoder(speaker.sampler, speaker.config)
    # Warn of words that the model does not know at every question, not only at the first one.
    warnings.simplefilter("always")
    conversation = Conversation(speaker, is_live=sys.stdout.isatty())
    is_typed = sys.stdin.isatty()
    example = _begin(console, speaker.source) if is_typed else ""
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
