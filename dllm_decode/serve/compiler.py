"""Compiles the constraints of requests, in turns that are fair to clients."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any

from dllm_decode.core.automaton import Automaton
from dllm_decode.engine.decoder import Decoder
from dllm_decode.serve.answer_forms import Form
from dllm_decode.serve.compiler_process import CompilerProcess
from dllm_decode.serve.errors import RefusedError
from dllm_decode.text.constraints import read_vocabulary

_NUM_KEPT = 64
_NUM_CLIENTS = 1_000


class Compiler:
    """Compiles one constraint at a time, in a process of its own; keeps the last automata."""

    def __init__(self, tokenizer: Any, decoder: Decoder) -> None:
        """Takes a tokenizer that no other thread uses, and a decoder of the model."""
        model = decoder.model
        self._worker = CompilerProcess(
            partial(read_vocabulary, tokenizer, model.vocab_size, model.eos_ids, decoder.banned_ids)
        )
        self._pool = ThreadPoolExecutor(1, "dllm-decode compiler")
        self._kept: OrderedDict[str, Automaton] = OrderedDict()
        self._turns = _Turns()

    async def compile(self, form: Form, *, client: str) -> Automaton:
        """Returns the automaton of a constraint that a client asks for.

        An automaton that is kept is returned at once. The compilation ends if the task that waits
        for it is cancelled.

        Raises:
            RefusedError: If there is no such automaton, or it is too large.
        """
        param, source = form.param, form.source
        digest = sha256(source.encode("utf-8", "replace")).hexdigest()
        try:
            if digest not in self._kept:
                async with self._turns.turn(client):
                    # Another request may have asked for the same form.
                    if digest not in self._kept:
                        self._kept[digest] = await self._compiled(form)
        except ValueError as error:
            raise RefusedError(400, str(error), param=param) from None
        except RecursionError:
            raise RefusedError(400, f"{param!r} is nested too deeply.", param=param) from None
        automaton = self._kept[digest]
        self._kept.move_to_end(digest)
        if len(self._kept) > _NUM_KEPT:
            self._kept.popitem(last=False)
        return automaton

    def close(self) -> None:
        """Ends the process, and begins no further compilation."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._worker.end()

    async def _compiled(self, form: Form) -> Automaton:
        """Waits for the thread that waits for the process, which ends if this is cancelled."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            return await run(self._pool, self._worker.compile, form.read)
        except asyncio.CancelledError:
            self._worker.end()
            raise


class _Turns:
    """Gives one turn at a time; of clients that wait, the one that used the least time is next."""

    def __init__(self) -> None:
        """Begins without clients."""
        self._is_taken = False
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._used_s: OrderedDict[str, float] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Waits for a turn of a client, which ends with the block."""
        if self._is_taken:
            place = (client, asyncio.get_running_loop().create_future())
            self._waiting.append(place)
            try:
                await place[1]
            except asyncio.CancelledError:
                if place in self._waiting:
                    self._waiting.remove(place)
                else:
                    self._pass_on()
                raise
        self._is_taken = True
        began_s = time.monotonic()
        try:
            yield
        finally:
            # Time that a client used long ago counts less and less.
            used_s = self._used_s.pop(client, 0.0) / 2 + time.monotonic() - began_s
            self._used_s[client] = used_s
            if len(self._used_s) > _NUM_CLIENTS:
                self._used_s.popitem(last=False)
            self._pass_on()

    def _pass_on(self) -> None:
        """Gives the turn to the next client, if one waits."""
        # A client that has just given up is cancelled, and takes itself out later.
        waiting = [place for place in self._waiting if not place[1].done()]
        self._is_taken = bool(waiting)
        if waiting:
            place = min(waiting, key=lambda place: self._used_s.get(place[0], 0.0))
            self._waiting.remove(place)
            place[1].set_result(None)
