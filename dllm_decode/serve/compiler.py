"""Compiles the constraints of requests, in a thread of its own."""

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from dllm_decode.core.language import Automaton
from dllm_decode.engine.decoder import Decoder
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.forms import Form
from dllm_decode.text.constraints import build_automaton, read_vocabulary

_NUM_KEPT = 64

MAX_SOURCE = 2**16
"""Characters of a constraint, at most: a longer one takes seconds to read."""


class Compiler:
    """Compiles one constraint after another; a client has at most one that is being compiled.

    Attributes:
        num_compiling: Constraints that are being compiled now, 0 or 1.
        num_compiled: Constraints that were compiled, failures included.
    """

    def __init__(self, tokenizer: Any, decoder: Decoder) -> None:
        """Takes a tokenizer that no other thread uses, and a decoder of the model."""
        model = decoder.model
        self._vocabulary = partial(
            read_vocabulary, tokenizer, model.vocab_size, model.eos_ids, decoder.banned_ids
        )
        self.num_compiling = self.num_compiled = 0
        self._pool = ThreadPoolExecutor(1, "dllm-decode compiler")
        self._kept: OrderedDict[str, Automaton] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def compile(self, form: Form, *, client: str) -> Automaton:
        """Returns the automaton of a constraint that a client asks for.

        The compilation ends if the task that waits for it is cancelled.

        Raises:
            RefusedError: If there is no such automaton, or it is too large.
        """
        param, source = form.param, form.source
        if len(source) > MAX_SOURCE:
            message = f"{param!r} must have at most {MAX_SOURCE} characters, got {len(source)}."
            raise RefusedError(400, message, param=param)
        digest = sha256(source.encode("utf-8", "replace")).hexdigest()
        turn = self._turns.setdefault(client, asyncio.Lock())
        has_left = threading.Event()
        try:
            async with turn:
                run = asyncio.get_running_loop().run_in_executor
                return await run(self._pool, self._compiled, digest, form, has_left)
        except (ValueError, ImportError) as error:
            raise RefusedError(400, str(error), param=param) from None
        except RecursionError:
            raise RefusedError(400, f"{param!r} is nested too deeply.", param=param) from None
        finally:
            has_left.set()

    def close(self) -> None:
        """Ends the thread, and begins no further compilation."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, digest: str, form: Form, has_left: threading.Event) -> Automaton:
        """Runs in the thread; no other thread uses the cache of automata."""
        automaton = self._kept.get(digest)
        if automaton is None:
            self.num_compiling = 1
            try:
                automaton = build_automaton(
                    form.read(), self._vocabulary(), is_wanted=lambda: not has_left.is_set()
                )
            finally:
                self.num_compiling = 0
                self.num_compiled += 1
        self._kept[digest] = automaton
        self._kept.move_to_end(digest)
        if len(self._kept) > _NUM_KEPT:
            self._kept.popitem(last=False)
        return automaton
