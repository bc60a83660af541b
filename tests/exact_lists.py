"""A model of list prompts in words that answers with exact conditionals."""

from dataclasses import dataclass, field

import torch
from eval_runs import TOKENIZER
from torch import Tensor

from dllm_decode import ForwardInputs, KVCache
from eval.oracle.joint import Joint
from eval.oracle.oracle import OracleModel
from eval.tasks.lists import Request, valid_outputs

ANSWER = TOKENIZER.encode("answer")[0]


@dataclass
class ExactLists:
    """Reads `shuffle : [ a b c ] answer :` and knows every right answer, brackets and EOS included.

    The oracle speaks in symbols; each row's symbols are its words, in the order of the answers.
    """

    mask_id: int = 1
    eos_ids: tuple[int, ...] = (0,)
    banned_ids: tuple[int, ...] = ()
    logit_shift: int = 0
    causal_block_length: int = 0
    max_length: int | None = None
    vocab_size: int = len(TOKENIZER)
    name: str = "exact lists"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        raise ValueError("No keys and values.")

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = torch.full((*inputs.wanted.shape, self.vocab_size), -1e9, dtype=torch.float64)
        for row, tokens in enumerate(inputs.tokens.tolist()):
            end = tokens.index(ANSWER) + 2
            start = int((inputs.positions[row] == 0).sum()) - 1
            logits[row] = self._row(tokens[start:], inputs.wanted[row] - start, end - start)
        return logits

    def _row(self, tokens: list[int], wanted: Tensor, end: int) -> Tensor:
        (
            keyword,
            *_,
        ) = words = TOKENIZER.decode(tokens[: end - 2]).split()
        items = tuple(words[words.index("[") + 1 : words.index("]")])
        new = words[1] if keyword in ("replace_any", "insert_any") else None
        answers = [
            TOKENIZER.encode(" ".join(["[", *answer, "]"]))
            for answer in valid_outputs(Request(keyword, items, word=new))
        ]
        ids = list(dict.fromkeys(token for answer in answers for token in answer))
        oracle = OracleModel([Joint.uniform(answers)])
        symbols = {**{token: i for i, token in enumerate(ids)}, 0: oracle.eos_ids[0]}
        # The noise of ties is keyed by the prompt.
        prompt = oracle.prompt(hash(tuple(tokens[:end])) % 1_000_000_007)
        region = [symbols.get(token, oracle.mask_id) for token in tokens[end:]]
        canvas = torch.tensor([[*prompt, *region]])
        positions = torch.arange(canvas.shape[1])[None]
        found = oracle.predict(
            ForwardInputs(
                tokens=canvas, positions=positions, wanted=(wanted - end + len(prompt))[None]
            )
        )[0]
        logits = torch.full((len(wanted), self.vocab_size), -1e9, dtype=torch.float64)
        logits[:, [*ids, 0]] = found[:, : oracle.mask_id]
        return logits
