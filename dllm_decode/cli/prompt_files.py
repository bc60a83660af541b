"""Runs `dllm-decode generate --input FILE --output FILE`: one prompt or answer per line.

Several processes divide the lines. Each appends to a file of its own, `answers.0-of-2.jsonl` for
rank 0 of 2, and leaves out prompts that have an answer in any file of the same output.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dllm_decode import Request, RequestQueue, run
from dllm_decode.cli.input_lines import InputLine, place_of, read_prompts
from dllm_decode.cli.model_setup import ModelSetup
from dllm_decode.core.files import append_text, mend_last_line, whole_lines
from dllm_decode.core.model import fingerprint_of
from dllm_decode.core.options import RequestOptions
from dllm_decode.core.prompts import Prompt, filling_options
from dllm_decode.core.stopping import stop_rule
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import raise_errors
from dllm_decode.settings.addresses import parse_model
from dllm_decode.settings.files import digest, digest_of_file, only_writer, output_file, parse_json
from dllm_decode.settings.plugins import sources_of
from dllm_decode.settings.ranks import ALONE, ProcessRank
from dllm_decode.text.answer_progress import AnswerProgress
from dllm_decode.text.answers import answer_of
from dllm_decode.text.blanks import start_ids, template_ids
from dllm_decode.text.constraints import constraint_of
from dllm_decode.text.text_requests import automaton_of
from dllm_decode.text.tokenization import ChatMode, prompt_ids
from samplers.expression import expression_of


class OutputLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the output, with the fields of an `Answer`.

    Attributes:
        line: Number of the prompt's line in the input, from 1.
        key: Digest of the line of the input and of all settings.
    """

    line: int
    id: str | int | None
    text: str
    token_ids: list[int]
    finish_reason: str
    forwards: int
    key: str


class LineRequest(NamedTuple):
    """A line of the input, the key of its answer, and the request of its decode.

    The request's index is the number of the line, from 0.
    """

    line: InputLine
    request: Request
    key: str


@dataclass(frozen=True)
class _Reader:
    """Makes lines of the input into requests; errors name the line.

    Attributes:
        source: The file, as errors name it.
        chat: How texts are read.
    """

    setup: ModelSetup
    source: str
    chat: ChatMode

    def template(self, number: int, text: str) -> list[int]:
        """Returns the token ids of a line's template."""
        try:
            return template_ids(self.setup.tokenizer, text, self.setup.model)
        except ValueError as error:
            raise self._refusal(number, error) from None

    def request(
        self, decoder: Decoder, number: int, line: InputLine, template: Sequence[int]
    ) -> Request:
        """Returns the request of a line."""
        tokenizer = self.setup.tokenizer
        try:
            inputs = line.messages if line.text is None else line.text
            prompts: list[Prompt] = (
                [start_ids(tokenizer)]
                if inputs is None
                else prompt_ids(tokenizer, inputs, chat=self.chat)
            )
            gen_length = self.setup.config.gen_length
            options: RequestOptions = {"gen_length": gen_length, **line.options()}
            if template:
                options = filling_options(template, line.options())
            constraint = None if line.constraint is None else constraint_of(line.constraint)
            automaton = automaton_of(decoder, tokenizer, constraint)
            return decoder.request(
                prompts[0], number, template=template, stop=stop_rule(tokenizer, line.stop_strings),
                constraint=automaton, **options,
            )  # fmt: skip
        except ValueError as error:
            raise self._refusal(number, error) from None

    def _refusal(self, number: int, error: ValueError) -> ValueError:
        return ValueError(f"{place_of(self.source, number)}: {error}")


def answer_file(
    setup: ModelSetup,
    source: str,
    target: str,
    *,
    num_rows: int,
    chat: ChatMode,
    progress: bool,
    process: ProcessRank = ALONE,
) -> str:
    """Answers the prompts of a file that have no answer yet, and returns a summary of the work.

    Each answer is appended to the rank's file as soon as it has ended; at most `num_rows` prompts
    are decoded together. Raises ValueError, before anything is decoded, if a line cannot be
    answered, or the output belongs to another input or to other settings.
    """
    output = output_file("--output", target)
    lines = read_prompts(Path(source))
    reader = _Reader(setup, source, chat)
    templates = {
        number: reader.template(number, line.template)
        for number, line in lines.items()
        if line.template is not None
    }
    lengths = [line.gen_length or 0 for line in lines.values()]
    longest = max(setup.config.gen_length, *lengths, *map(len, templates.values()))
    decoder = setup.decoder(setup.sampler, setup.config.updated(gen_length=longest))
    settings = _settings(setup, chat)
    line_requests = [
        LineRequest(
            line,
            reader.request(decoder, number, line, templates.get(number, ())),
            digest([*settings, number, msgspec.to_builtins(line)]),
        )
        for number, line in lines.items()
    ]
    keys = {r.request.index: r.key for r in line_requests}
    mine = line_requests[process.rank :: process.world_size]
    file = output_file("--output", str(_file_of(output, process)))
    with _run_lock(output, process, digest([*keys.values()])):
        done = _read_done(output, process, keys, source)
        left = {r.request.index: r for r in mine if r.request.index not in done}
        _decode(decoder, setup.tokenizer, left, file, num_rows=num_rows, progress=progress)
    before = f"; {len(mine) - len(left)} were there before" if len(mine) > len(left) else ""
    return f"{len(left)} answers written to {file}{before}."


def _file_of(output: Path, process: ProcessRank) -> Path:
    """Returns the file in which a process writes its answers."""
    if process.world_size == 1:
        return output
    return output.with_stem(f"{output.stem}.{process.rank}-of-{process.world_size}")


@contextmanager
def _run_lock(output: Path, process: ProcessRank, settings: str) -> Iterator[None]:
    """Holds the lock of a rank; all locks of a run have its number of ranks and settings as name.

    Raises ValueError if another process has the same rank, or any process is of another run.
    """
    ending = f"-of-{process.world_size}.{settings}.lock"
    own = output.with_name(f".{output.name}.{process.rank}{ending}")
    refusal = f"Another process writes {_file_of(output, process)}; wait until it ends."
    with only_writer(own, refusal):
        locks = re.compile(rf"\.{re.escape(output.name)}\.\d+(-of-\d+\.\w+\.lock)")
        for lock in output.parent.iterdir():
            found = locks.fullmatch(lock.name)
            if found and found[1] != ending:
                refusal = (
                    f"All processes that write {output} must have the same prompts, settings and "
                    f"number of ranks, got one with others, which holds {lock.name}. Wait until it "
                    "ends, or choose another --output."
                )
                # Ranks that start together try the locks of earlier runs at the same time.
                with only_writer(lock, refusal, timeout_s=5.0):
                    pass
        yield


def _settings(setup: ModelSetup, chat: ChatMode) -> list[object]:
    """Returns all that answers depend on: options, files of the model and of plug-ins, and code."""
    plugins = (setup.sampler, setup.cache, setup.verifier, setup.blocks)
    files = (*setup.files, *setup.sampler.files, *setup.verifier.files)
    return [
        fingerprint_of(setup.model), setup.dtype, parse_model(setup.source).quantize, chat,
        *map(expression_of, (*plugins, setup.config)),
        sources_of(plugins, setup.source), [digest_of_file(file) for file in files],
    ]  # fmt: skip


def _read_done(
    output: Path, process: ProcessRank, keys: Mapping[int, str], source: str
) -> set[int]:
    """Returns the numbers of the prompts that are answered in a file of any rank, or of none.

    Removes a torn last line of our own file; rank 0 also those of runs with other numbers of ranks.
    """
    ranks = re.compile(rf"{re.escape(output.stem)}(\.\d+-of-(\d+))?{re.escape(output.suffix)}")
    own, done = _file_of(output, process), set()
    for file in output.parent.iterdir():
        name = ranks.fullmatch(file.name)
        if not name:
            continue
        for where, line in whole_lines(file):
            answered = parse_json(line, OutputLine, where, "choose another --output")
            if keys.get(answered.line - 1) != answered.key:
                raise ValueError(
                    f"{where} must answer line {answered.line} of {source} with the settings of "
                    "this command, but prompt or settings differ; choose another --output."
                )
            done.add(answered.line - 1)
        if file == own or (process.rank == 0 and int(name[2] or 1) != process.world_size):
            mend_last_line(file, b'{"line":')
    return done


def _decode(
    decoder: Decoder,
    tokenizer: Any,
    left: Mapping[int, LineRequest],
    file: Path,
    *,
    num_rows: int,
    progress: bool,
) -> None:
    queue = RequestQueue(prompt.request for prompt in left.values())
    display = AnswerProgress(len(left)) if progress else nullcontext()
    with display as bar:
        for ended in raise_errors(run(decoder, queue, num_rows, [] if bar is None else [bar])):
            line, request, key = left[ended.index]
            answer = answer_of(tokenizer, request, ended.output, 0, line.stop_strings)
            written = OutputLine(line=request.index + 1, id=line.id, key=key, **answer.to_dict())
            append_text(file, f"{msgspec.json.encode(written).decode()}\n")
