"""The commands `generate`, `read` and `chat`, and the options that name the model that answers."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from dllm_decode.cli.models import Speaker, load_speaker, open_model
from dllm_decode.cli.plugins import parse_sampler
from dllm_decode.text.texts import UseTemplate


def generate_once(options: Namespace) -> int:
    """Answers one question, fills one template, or answers a file."""
    _check_generate(options)
    text = read_input(sys.stdin.read) if options.text == "-" else options.text
    if text is not None and not text.strip():
        raise ValueError("The question must not be empty; give a text, or - to read one.")
    constraint = named_constraint(options)
    chat: UseTemplate = False if options.plain else "auto"
    speaker = load_speaker(options)
    if options.input:
        from dllm_decode.cli.prompt_files import answer_file

        done = answer_file(
            speaker, options.input, options.output, num_rows=options.num_rows, chat=chat,
            progress=sys.stderr.isatty(),
        )  # fmt: skip
        sys.stderr.write(f"{done}\n")
        return 0
    out = speaker.answer(
        text, live=options.live, chat=chat, template=options.template, constraint=constraint
    )
    if not options.live:
        sys.stdout.write(f"{out.texts[0]}\n")
    sys.stderr.write(f"{out.cost}\n")
    return 0


def named_constraint(options: Namespace) -> Mapping[str, Any] | None:
    """Returns the constraint that options name, as `constraint_of` reads it; `None`: none.

    Raises ValueError if there are several, or one for a file of prompts.
    """
    named = {"regex": options.regex, "json": options.json_schema, "choice": options.choice}
    given = {name: value for name, value in named.items() if value}
    if not given:
        return None
    if len(given) > 1:
        raise ValueError("One of --regex, --json-schema and --choice must be given, got several.")
    if options.input:
        raise ValueError(
            "--regex, --json-schema and --choice must be left out with --input, whose lines have "
            'their own: "constraint": {"regex": "[0-9]+"}.'
        )
    if "json" in given:
        try:
            given["json"] = json.loads(Path(options.json_schema).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"--json-schema must be a file of JSON, got {options.json_schema}: {error}."
            ) from None
    return given


def _check_generate(options: Namespace) -> None:
    """Raises ValueError if the options of `generate` contradict each other."""
    if bool(options.input) != bool(options.output):
        raise ValueError(
            "--input and --output must be given together: a prompt and an answer a line."
        )
    if options.input and (options.text is not None or options.template or options.live):
        raise ValueError("--input must be given without a text, --template and --live.")
    if not options.input and options.text is None and not options.template:
        raise ValueError("A question must be given, or --template, or --input with --output.")
    if options.template and (options.gen_length is not None or options.stop_at_eos):
        raise ValueError(
            "--gen-length and --stop-at-eos must be left out with --template, which is filled as "
            "a whole."
        )


def read_once(options: Namespace) -> int:
    """Writes how probable each allowed answer is at each choice of a text."""
    from dllm_decode import read

    loaded = open_model(options.model, options, options.revision)
    # Its own type is wider than `Loaded` says.
    tokenizer: Any = loaded.tokenizer
    for choice in read(loaded.model, tokenizer, options.text, options.question):
        width = max(len(answer.text) for answer in choice.answers)
        sys.stdout.write(f"{choice.best}\n")
        for answer in choice.answers:
            sys.stdout.write(
                f"  {answer.text:{width}}  probability {answer.probability:<8.3g}  "
                f"share {answer.share:.3g}\n"
            )
    return 0


def read_input(read: Callable[[], str]) -> str:
    """Reads text from standard input; raises ValueError if it is not in UTF-8."""
    try:
        text = read()
        # Some locales read other bytes as halves of surrogate pairs.
        text.encode()
    except UnicodeError as error:
        raise ValueError(f"Standard input must be text in UTF-8, got {error}.") from None
    return text


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
