"""
Several answers at once, by one compiled program: sequences join and leave between its steps.

A step of the program takes a token of each sequence, so that weights are read once for all of them.
What a sequence gets depends on itself alone, to the bit: its prompt goes through prefill as it does
alone, and the program's rows are those of decode.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from rlx.errors import RlxError
from rlx.lowering.abi import COUNTER_OFFSET, Sampling
from rlx.runtime.memory import Segment
from rlx.runtime.prefix import Prefix
from rlx.runtime.program import CALL_SECONDS, Program
from rlx.runtime.request import Request, Settings, no_token
from rlx.wording import several

_COUNTER = COUNTER_OFFSET // 8
"""The word of a sequence's sampling that counts its draws."""


class Host(NamedTuple):
    """What a batch needs of its model."""

    program: Program
    kv_cache: str
    """What keys and values are kept in."""
    chunk: int
    """Tokens of prompts that a step feeds at most."""
    reuse_prefix: bool
    turn: Callable[[], AbstractContextManager[None]]
    request: Callable[[str | Sequence[int], Settings], Request]
    """Checks what is asked."""
    feed: Callable[[int, int, Sequence[int], Sampling, bool], int]
    """
    Feeds tokens through prefill, with a state at an address that has so many positions, and draws a
    token where these are a prompt's last.
    """


@dataclass
class BatchStats:
    """Facts of a batch so far: tokens, steps, and seconds within compiled code."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Of the prompts, those that were in a slot already."""
    new_tokens: int = 0
    steps: int = 0
    step_tokens: int = 0
    """New tokens that steps gave: all but the first ones of answers."""
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Answer:
    """An answer that a batch is making; what `Batch.add` gives."""

    def __init__(self, request: Request):
        self.request = request
        self.made: list[int] = []
        """What the batch has made: it goes on from there."""
        self.error: RlxError | None = None
        """Why it could not go on, and has left; `made` has what came before."""
        self._left = False

    @property
    def ids(self) -> list[int]:
        """Return its tokens so far, the end token included: a copy. Raises its error, if any."""
        if self.error is not None:
            raise self.error
        return list(self.made)

    @property
    def done(self) -> bool:
        """Return whether it is complete, or has left the batch."""
        ids = self.made
        return self._left or len(ids) >= self.request.limit or bool(ids and self._stopped)

    @property
    def _stopped(self) -> bool:
        return self.made[-1] in self.request.stops

    def leave(self) -> None:
        """Let the batch go on without it, from the next step on."""
        self._left = True

    def __repr__(self) -> str:
        state = "done" if self.done else "not done"
        return (
            f"<answer to {several(len(self.request.prompt), 'token')}: {len(self.made)}, {state}>"
        )


class _Slot:
    """The place of a sequence in the memory of a batch."""

    def __init__(self, address: int, behind: int):
        self.address = address
        self.behind = behind
        """Bytes from the first slot to this one."""
        self.prefix = Prefix()
        self.answer: Answer | None = None
        self.fed: int | None = None
        """Tokens of its prompt that are in the state; None where it has not begun."""

    @property
    def free(self) -> bool:
        return self.answer is None or self.answer.done

    def take(self, answer: Answer) -> None:
        self.fed = None
        self.answer = answer


class Batch:
    """
    A running batch; made by `LanguageModel.batch`.

    `step`, or a loop over the batch, runs it. Each step takes its turn of the model, so that other
    generations of it, also those of other threads, go on between steps. Any thread may add. What a
    step that Ctrl-C interrupts leaves undone is done by the next one.
    """

    def __init__(self, host: Host, slots: int):
        self.stats = BatchStats()
        self._host = host
        manifest = host.program.manifest
        stride = manifest.state_bytes
        # Pages are there from when they are first written: a slot takes what its tokens need.
        state = Segment(slots * stride, sparse=True)
        self._state: Segment | None = state
        """None where the batch is closed; a step that is running then keeps it until its end."""
        starts = range(0, slots * stride, stride)
        self._slots = [_Slot(state.address + start, start) for start in starts]
        self._queue: list[_Slot] = []
        """Slots in the order in which their answers came."""
        self._step_s = CALL_SECONDS
        """What a step takes, about."""
        self._lock = threading.Lock()
        self._tokens = np.zeros(slots, np.int32)
        self._places = np.zeros((slots, 2), np.int64)
        self._sampling = np.zeros((slots, 4), np.uint64)
        self._ids = np.zeros(slots, np.int32)
        logits = next(io for io in manifest.outputs if io.name == "logits")
        self._logits = np.zeros((slots, int(logits.dims[-1])), np.float32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let all sequences leave, and give the memory back."""
        with self._lock:
            self._state = None
            for slot in self._slots:
                if slot.answer is not None:
                    slot.answer.leave()

    @property
    def slots(self) -> int:
        """Return how many sequences it has room for."""
        return len(self._slots)

    @property
    def free(self) -> int:
        """Return how many sequences may be added now."""
        return sum(slot.free for slot in self._slots)

    def add(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: bool = True,
    ) -> Answer:
        """
        Let a sequence join at the next step; return what holds its answer.

        The arguments are those of `LanguageModel.generate_ids`, and so are the tokens. Raises
        RlxError as that does, where no slot is free, and where the batch is closed.
        """
        self._open_state()
        settings = Settings(max_tokens, temperature, top_k, top_p, seed, stop)
        request = self._host.request(prompt, settings)
        answer = Answer(request)
        with self._lock:
            self._open_state()
            slot = self._choose(request.prompt)
            slot.take(answer)
            self._queue = [s for s in self._queue if s is not slot and not s.free] + [slot]
        return answer

    def step(self) -> list[tuple[Answer, int]]:
        """
        Feed prompts that wait, then let each sequence take a step; return the new tokens.

        Of long prompts each step feeds a chunk, so that other sequences need not wait for all of
        one. An empty list says that there is nothing to do, or that a long prompt is on its way:
        see `busy`. An answer whose logits are NaN leaves, with an `error`; the others go on.
        Raises RlxError where the batch is closed.
        """
        with self._host.turn():
            state = self._open_state()
            with self._lock:
                queue = [(s, s.answer) for s in self._queue if s.answer is not None and not s.free]
            running = [pair for pair in queue if pair[1].made]
            first = self._feed([pair for pair in queue if not pair[1].made])
            return first + (self._decode(running, state.address) if running else [])

    @property
    def busy(self) -> bool:
        """Return whether any answer is not done."""
        return self.free < self.slots

    def __iter__(self) -> Iterator[tuple[Answer, int]]:
        """
        Step until all answers are done; give each new token with its answer.

        Raises RlxError at the end, where an answer that was in the batch has an error.
        """
        error: RlxError | None = None
        while self.busy:
            running = [s.answer for s in self._slots if s.answer is not None and not s.free]
            drawn = self.step()
            error = error or next((a.error for a in running if a.error is not None), None)
            yield from drawn
        if error is not None:
            raise error

    def _open_state(self) -> Segment:
        if self._state is None:
            raise RlxError("this batch is closed: make another one with model.batch()")
        return self._state

    def _choose(self, prompt: Sequence[int]) -> _Slot:
        """Return the free slot that has most of a prompt."""
        free = [slot for slot in self._slots if slot.free]
        if not free:
            raise RlxError(
                f"all {self.slots} slots of this batch are taken: step until an answer is done, or "
                "make a batch with more slots"
            )
        return max(free, key=lambda slot: slot.prefix.shared(prompt))

    def _feed(self, waiting: Sequence[tuple[_Slot, Answer]]) -> list[tuple[Answer, int]]:
        """Feed a chunk of the prompts that wait, in their order; return the first tokens drawn."""
        host, stats, left = self._host, self.stats, self._host.chunk
        drawn: list[tuple[Answer, int]] = []
        for slot, answer in waiting:
            prompt = answer.request.prompt
            if slot.fed is None:
                slot.fed = slot.prefix.shared(prompt) if host.reuse_prefix else 0
                stats.prompt_tokens += len(prompt)
                stats.reused_tokens += slot.fed
            part = prompt[slot.fed : slot.fed + left]
            if not part:
                break
            last = slot.fed + len(part) == len(prompt)
            slot.prefix.cut(slot.fed)
            before = time.perf_counter()
            token = host.feed(slot.address, slot.fed, part, answer.request.sampling, last)
            stats.prefill_s += time.perf_counter() - before
            slot.prefix.fed(slot.fed, part)
            slot.fed += len(part)
            left -= len(part)
            if last:
                self._give(answer, token, drawn)
        return drawn

    def _decode(
        self, running: Sequence[tuple[_Slot, Answer]], state: int
    ) -> list[tuple[Answer, int]]:
        """Let sequences take a step; what the program reads is made anew from their answers."""
        program, stats = self._host.program, self.stats
        for row, (slot, answer) in enumerate(running):
            request, count = answer.request, len(answer.made)
            self._tokens[row] = answer.made[-1]
            self._places[row] = slot.behind, len(request.prompt) + count - 1
            self._sampling[row] = np.frombuffer(request.sampling.pack(), np.uint64)
            self._sampling[row, _COUNTER] = count
        for name, array in (
            ("tokens", self._tokens),
            ("places", self._places),
            ("sampling", self._sampling),
        ):
            program.bind_input(name, array)
        program.bind_output("id", self._ids)
        program.bind_output("logits", self._logits)
        in_calls = self._step_s >= CALL_SECONDS
        before = time.perf_counter()
        with program.on_state(state):
            program.step({"rows": len(running)}, in_calls=in_calls)
        self._step_s = time.perf_counter() - before
        stats.decode_s += self._step_s
        stats.steps += 1
        drawn: list[tuple[Answer, int]] = []
        for (_, answer), token in zip(running, self._ids.tolist(), strict=False):
            self._give(answer, token, drawn)
        stats.step_tokens += len(drawn)
        return drawn

    def _give(self, answer: Answer, token: int, drawn: list[tuple[Answer, int]]) -> None:
        if token < 0:
            answer.error = no_token(len(answer.made) + 1, self._host.kv_cache)
            answer.leave()
            return
        drawn.append((answer, token))
        answer.made.append(token)
        self.stats.new_tokens += 1
