"""What a synchronisation is made of, measured inside a training job after its timed window.

Two kinds of training steps alternate, in blocks, with the network, batches and ranks of the job. Both wait for each
other between backward and synchronisation, at a barrier of the raw transport, so that no rank is late:

    floor     the gradients, packed into one buffer, go through the raw transport: one all-reduce, no runtime
    through   the gradients are averaged as in training, by the backend: packing, runtime and transport

Packing (`pack_s`) is timed alone, before the barrier of `floor`. On a GPU it copies the gradients; on a processor
hooks have copied each in backward (comm.base.FlatGradients), and what is timed is the check that all are there and
their norm.

The steps before the collective are real ones. So caches are as training leaves them, and a runtime's background thread
has been idle, or has gone on with its cycle, for as long as in training. The barrier is not the backend's own: that of
Horovod goes through the same thread, and would leave it at the begin of a cycle. docs/explain.md explains what is
made of it.
"""

import copy
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.comm.base import FlatGradients, fail_together
from horovod_study.comm.priority import NewThreads
from horovod_study.comm.raw import Raw, open_raw
from horovod_study.measure.clock import now
from horovod_study.workload.probes.scratch import Scratch

REPEATS = 200
"""Steps of each kind that are kept, of a run that has made as many."""

BLOCK = 10
"""Steps of one kind in a row. One more goes before them and is not kept: it follows a step of the other kind."""


def measure(scratch: Scratch, *, repeats: int = REPEATS) -> dict[str, Any]:
    """Return what is the section "synchronisation" of bench.json; collective, and the same on all ranks.

    All times are seconds of one synchronisation, a mean over the ranks. Model and optimiser are afterwards what they
    were before. Raises BackendError, on every rank, when the raw transport cannot be opened.
    """
    backend = scratch.backend
    before = NewThreads()
    with scratch.kept(), closing(open_raw(backend.transport, backend)) as raw:
        priority = backend.settings.get("thread_priority", {}).get("value")
        with fail_together(backend):
            if priority in ("realtime", "slice"):  # or the raw transport would wait where the backend's does not
                before.prioritise(priority)
        steps = _SyncSteps(scratch, raw)
        blocks = max(1, round(repeats / BLOCK))
        for _ in range(blocks):
            steps.make("floor", BLOCK)
            steps.make("through", BLOCK)

    everybody = backend.gather((os.uname().nodename, *steps.spans.values(), steps.pack_s))
    one_host = len({host for host, *_ in everybody}) == 1
    floor_s, common = after_the_last([spans for _, spans, _, _ in everybody], one_host=one_host)
    through_s = after_the_last([spans for _, _, spans, _ in everybody], one_host=one_host)[0]
    packs = [pack_s for *_, pack_s in everybody]
    why = (
        "with hooks the transfers begin in backward, and sync is only what is left of them then: how much of that is "
        "transfer and how much runtime cannot be distinguished from here"
    )
    return {
        "transport": raw.name,
        "reduction": backend.reduction,
        "workers": backend.workers,
        "gradient_bytes": steps.buffer.numel() * steps.buffer.element_size(),
        "block": BLOCK,
        "clock": "common" if common else "own",
        "floor_s": _plain(floor_s),
        "pack_s": _plain(np.mean(packs, axis=0)) if steps.through_known else None,
        "through_s": _plain(through_s) if steps.through_known else None,
        "why_not_through": "" if steps.through_known else why,
    }


def after_the_last(
    spans: Sequence[Sequence[tuple[float, float]]], *, one_host: bool
) -> tuple[NDArray[np.float64], bool]:
    """Return the seconds from the last rank's begin to the mean rank's end, and whether the ranks share a clock.

    `spans`: for each rank the begin and end of each of the S collectives; the result has shape (S,). Ranks leave a
    barrier a little apart, and the first must not count its waiting for the last: that is skew. Processes of one host
    read one clock (a collective cannot end on one rank before it has begun on all: where it seems to, the clocks are
    not one). Ranks of several hosts count their own time from the barrier instead, its unevenness included.
    """
    begins, ends = np.moveaxis(np.asarray(spans, dtype=np.float64).reshape(len(spans), -1, 2), 2, 0)  # each (R, S)
    common = one_host and bool(np.all(begins.max(axis=0) <= ends.min(axis=0)))
    return (ends.mean(axis=0) - begins.max(axis=0) if common else (ends - begins).mean(axis=0)), common


class _SyncSteps:
    """Training steps of both kinds, and the times read in them."""

    def __init__(self, scratch: Scratch, raw: Raw) -> None:
        backend = scratch.backend
        self._scratch, self._raw = scratch, raw
        self.through_known = backend.reduction != "hooks"
        # Hooks would send each gradient of the network that is trained; a copy of it has none.
        self._model = scratch.model if self.through_known else copy.deepcopy(scratch.bare_model)
        self._flat = backend.flat or FlatGradients(self._model.parameters(), workers=backend.workers)
        self.buffer = self._flat.buffer
        self.spans: dict[str, list[tuple[float, float]]] = {"floor": [], "through": []}
        self.pack_s: list[float] = []

    def make(self, kind: str, count: int) -> None:
        """Make `count` steps of one kind, and one before them; none `through` where hooks have begun in backward."""
        scratch, raw, known = self._scratch, self._raw, self.through_known
        for place in range(count + 1 if known or kind == "floor" else 0):
            curves, targets = scratch.batch()  # (B, C, L), (B, P)
            if known:
                scratch.backend.zero_grad(scratch.optimizer)
            else:
                self._model.zero_grad()
            scratch.arithmetic.backward(scratch.arithmetic.loss(self._model, curves, targets))
            scratch.settle()
            began_pack, buffer = now(), self._flat.pack() if kind == "floor" else self.buffer
            scratch.settle()
            pack_s = now() - began_pack
            raw.barrier()
            raw.settle()
            began = now()
            if kind == "floor":
                raw.allreduce_(buffer)
                raw.settle()
            else:
                scratch.backend.synchronize(scratch.optimizer)
                scratch.settle()
            span = (began, now())
            if known:
                scratch.arithmetic.step(scratch.optimizer, scratch.backend)
            if place:
                self.spans[kind].append(span)
                self.pack_s += [pack_s] if kind == "floor" else []


def _plain(seconds: NDArray[np.float64]) -> list[float]:
    return [round(value, 9) for value in seconds.tolist()]
