"""Decodes and scores the batches of one run that belong to this process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dllm_decode import DecodeOutput, Gains, Observer, Trace, decode
from eval.failures import FAILURES
from eval.runs import prompts
from eval.runs.lines import Binned, Cost, Record, RecordedTrace, append, tokens_of
from eval.runs.progress import Reporter
from eval.runs.proposals import Proposals
from eval.runs.provenance import now, package_commit
from eval.runs.records import Settings
from eval.runs.runners_up import RunnersUp
from eval.runs.settings import Place, Run
from eval.tasks import Example
from eval.tasks.base import checked_scores

# Seeds are this far apart, so that no two rows of a run share their noise.
_BATCH_STRIDE = 1 << 32
_ROW_STRIDE = 1 << 20

# Examples that a process decodes first in each run do not count for its timings: kernels are
# chosen and memory is reserved then. d3LLM's number.
_NUM_WARM_UP = 10


class Worker:
    """Decodes the batches of one run that belong to this process."""

    def __init__(
        self, run: Run, settings: Settings, part: Path, reporter: Reporter, machine: str
    ) -> None:
        """Takes a run.

        Args:
            run: What to decode.
            settings: What names it in the records.
            part: Where records go.
            reporter: Follows the progress.
            machine: Name of the folder's note on this process, see `Folder.note_machine`.
        """
        self._run = run
        self._machine = machine
        self._num_begun = 0
        self._settings = settings
        self._part = part
        self._reporter = reporter

    def work(self, examples: Sequence[Example], done: Mapping[str, Record], place: Place) -> None:
        """Decodes what is not done of this process's batches and appends the records.

        Args:
            examples: All examples of the run.
            done: Records of earlier runs by key.
            place: Which batches are this process's.
        """
        mine = range(place.rank, self.num_batches(examples), place.world_size)
        keys = [self._key(e) for index in mine for e in self._batch(examples, index)]
        finished = [done[key] for key in keys if key in done]
        self._reporter.begin(self.label, len(keys), finished)
        for index in mine:
            self.finish_batch(examples, index, done)

    @property
    def label(self) -> str:
        """The setting in words, what tells it apart first."""
        seed = f" seed {self._settings.seed}" if self._settings.seed else ""
        return f"{' + '.join(self._settings.parts)}{seed} on {self._settings.task}"

    def num_batches(self, examples: Sequence[Example]) -> int:
        """Returns how many batches there are."""
        return -(-len(examples) // self._run.batch_size)

    def finish_batch(
        self, examples: Sequence[Example], index: int, done: Mapping[str, Record]
    ) -> list[Record]:
        """Decodes a batch unless all of it is done; returns its records, in order.

        Args:
            examples: All examples of the run.
            index: Which batch.
            done: Records of earlier runs by key.
        """
        batch = self._batch(examples, index)
        missing = {e.id for e in batch if self._key(e) not in done}
        new: dict[str, Record] = {}
        if missing:
            seed = self._settings.seed + _BATCH_STRIDE * index
            warm_up = self._num_begun < _NUM_WARM_UP
            self._num_begun += len(batch)
            records = [r for r in self._decode(batch, seed) if r["example"] in missing]
            new = {record["key"]: {**record, "warm_up": warm_up} for record in records}
            append(self._part, new.values())
            self._reporter.add(list(new.values()))
        keys = [self._key(example) for example in batch]
        return [new[key] if key in new else done[key] for key in keys]

    def _batch(self, examples: Sequence[Example], index: int) -> Sequence[Example]:
        size = self._run.batch_size
        return examples[index * size : (index + 1) * size]

    def _key(self, example: Example) -> str:
        return self._settings.key(example.id)

    def _decode(self, examples: Sequence[Example], seed: int) -> list[Record]:
        """Decodes a batch; if that fails, each example alone."""
        try:
            return self._records(examples, seed)
        except FAILURES as error:
            if isinstance(error, ValueError):
                self._refuse_misfit()
            if len(examples) == 1:
                return [self._failed(examples[0], error)]
        alone = enumerate(examples, start=1)
        return [record for i, e in alone for record in self._decode([e], seed + i * _ROW_STRIDE)]

    def _refuse_misfit(self) -> None:
        """Raises the ValueError that these settings give whatever the prompt."""
        self._call([[self._run.model.eos_ids[0]]], 0, [])

    def _records(self, examples: Sequence[Example], seed: int) -> list[Record]:
        chat = self._settings.prompts == "chat"
        encoded = [prompts.encode_prompt(self._run.tokenizer, e, chat=chat) for e in examples]
        trace, runners_up, proposals, gains = Trace(), RunnersUp(), Proposals(), Gains()
        observers: list[Observer] = [self._reporter, gains]
        if self._run.trace:
            observers += [trace, runners_up, proposals]
        output = self._call(encoded, seed, observers)
        proposed = proposals.of(output.tokens, output.lengths())
        texts = [
            self._run.tokenizer.decode(answer, skip_special_tokens=True)
            for answer in output.answers()
        ]
        gained = gains.by_row()
        records: list[Record] = []
        for row, example in enumerate(examples):
            record: Record = {
                **self._scored(example, texts[row]),
                **cost_of(encoded[row], output, row),
                "committed": gained[row].committed,
                "gains": gained[row].per_forward,
                "tokens": output.tokens[row].tolist(),
                "trace": None,
            }
            if self._run.trace:
                told = self._traced(trace, runners_up, proposed[row], row, encoded[row])
                pieces = self._pieces(tokens_of(record, told))
                record = {**record, "trace": told, "pieces": pieces}
            records.append(record)
        return records

    def _call(
        self, encoded: list[list[int]], seed: int, observers: Sequence[Observer]
    ) -> DecodeOutput:
        run = self._run
        return decode(
            run.model,
            encoded,
            run.sampler,
            cache=run.cache,
            verifier=run.verifier,
            blocks=run.blocks,
            config=replace(self._settings.decoding, seed=seed),
            observers=observers,
        )

    def _scored(self, example: Example, text: str) -> Record:
        record: Record = {**self._head(example), "text": text}
        task = self._run.selection.task
        try:
            record["scores"] = checked_scores(task.score(example, text), task.primary)
        except FAILURES as error:
            record["error"] = _said(error)
        return record

    def _failed(self, example: Example, error: BaseException) -> Record:
        return {**self._head(example), "error": _said(error)}

    def _head(self, example: Example) -> Record:
        return {
            "key": self._key(example),
            "settings": self._settings.key(""),
            "example": example.id,
            "sampler": self._settings.sampler,
            "cache": self._settings.cache,
            "verifier": self._settings.verifier,
            "blocks": self._settings.blocks,
            "git": package_commit(),
            "machine": self._machine,
            "date": now(),
            "error": None,
            "primary": self._run.selection.task.primary,
            "prompt": example.turns()[-1]["content"],
            "target": example.target,
        }

    def _traced(
        self, trace: Trace, runners_up: RunnersUp, proposed: Binned, row: int, prompt: list[int]
    ) -> RecordedTrace:
        """Returns step and confidence of each position; -1 and None where no round committed it."""
        steps = trace.steps[row].tolist()
        return {
            "steps": steps,
            "runners_up": runners_up.of(row, steps),
            "proposals": proposed,
            "confidences": [_rounded(one) for one in trace.confidences[row].tolist()],
            "revisions": [
                (r.position, r.token, r.committed, _rounded(r.confidence), r.removed)
                for r in trace.revisions[row]
            ],
            "lead": len(prompt) % (self._run.model.causal_block_length or 1),
        }

    def _pieces(self, tokens: set[int]) -> dict[str, str]:
        return {str(token): self._run.tokenizer.decode([token]) for token in sorted(tokens)}


def cost_of(prompt: Sequence[int], output: DecodeOutput, row: int) -> Cost:
    """Returns what the answer to a prompt cost."""
    return {
        "prompt_length": len(prompt),
        "length": int(output.lengths()[row]),
        "nfe": int(output.nfe[row]),
        "query_positions": int(output.query_positions[row]),
        "target_nfe": int(output.target_nfe[row]),
        "drafted": int(output.drafted[row]),
        "accepted": int(output.accepted[row]),
        "batch_length": len(output.tokens),
        "batch_forwards": output.forwards,
        "batch_target_forwards": output.target_forwards,
        "batch_s": output.wall_s,
    }


def _rounded(confidence: float) -> float | None:
    return None if math.isnan(confidence) else round(confidence, 4)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
