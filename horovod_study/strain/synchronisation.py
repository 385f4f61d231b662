"""What communication costs a step, measured inside a training job after its timed window, in two ways.

What a synchronisation is made of: two kinds of training steps alternate, in blocks, with the network, batches and ranks
of the job. Both wait for each other between backward and synchronisation, at a barrier of the raw transport, so that no
rank is late:

    floor     the gradients, packed into one buffer, go through the raw transport: one all-reduce, no runtime
    through   the gradients are averaged as in training, by the backend: packing, runtime and transport

Packing (`pack_s`) is timed alone, before the barrier of `floor`. On a GPU it copies the gradients; on a processor
hooks have copied each in backward (comm.base.FlatGradients), and what is timed is the check that all are there and
their norm. The steps before the collective are real ones: caches are as training leaves them, and a runtime's thread
has been idle, or has gone on with its cycle, for as long as in training. The barrier is not the backend's own: that of
Horovod goes through the same thread, and would leave it at the begin of a cycle.

What leaving it out saves (ablation): blocks of two other kinds alternate, on the very objects that were trained:

    normal    steps as in training
    silent    steps in which every rank trains for itself (Backend.no_sync): nothing is averaged, nor copied to be

docs/explain.md explains how blocks follow each other, and what analysis/steps/attribution.py makes of them.
"""

import copy
import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm.base import FlatGradients, fail_together
from horovod_study.comm.priority import NewThreads
from horovod_study.comm.raw import Raw, open_raw
from horovod_study.config.run import LAPS
from horovod_study.errors import BackendError
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import LapClock, now, open_clock
from horovod_study.strain.scratch import Scratch

REPEATS = 200  # steps of each kind that are kept, of a run that has made as many
BLOCK = 10  # steps of one kind in a row; one more before them is not kept: it follows a step of the other kind
PAIRS, MIN_PAIRS = 40, 6  # of blocks, however short the run: the spread of fewer pairs says little
STEPS = 20  # counted steps of a block
LIMIT_S = 60.0  # when so much time has passed, no further pair is begun, once there are MIN_PAIRS

_COLUMNS = tuple(f"{lap}_s" for lap in (*LAPS, "residual", "step"))


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
        known = backend.reduction != "hooks"
        # Hooks would send each gradient of the network that is trained; a copy of it has none.
        model = scratch.model if known else copy.deepcopy(scratch.bare_model)
        flat = backend.flat or FlatGradients(model.parameters(), workers=backend.workers)
        spans: dict[str, list[tuple[float, float]]] = {"floor": [], "through": []}
        pack_s: list[float] = []
        for _ in range(max(1, round(repeats / BLOCK))):
            for kind in ("floor", "through") if known else ("floor",):
                made = [_step(scratch, raw, model, flat, floor=kind == "floor") for _ in range(1 + BLOCK)][1:]
                spans[kind] += [span for span, _ in made]
                pack_s += [seconds for _, seconds in made if kind == "floor"]

    everybody = backend.gather((os.uname().nodename, *spans.values(), pack_s))
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
        "gradient_bytes": flat.buffer.numel() * flat.buffer.element_size(),
        "block": BLOCK,
        "clock": "common" if common else "own",
        "floor_s": _plain(floor_s),
        "pack_s": _plain(np.mean(packs, axis=0)) if known else None,
        "through_s": _plain(through_s) if known else None,
        "why_not_through": "" if known else why,
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


def _step(
    scratch: Scratch, raw: Raw, model: nn.Module, flat: FlatGradients, *, floor: bool
) -> tuple[tuple[float, float], float]:
    """Make a step of one of the two kinds; return begin and end of its collective, and the seconds of packing.

    The network is the one that is trained, unless hooks begin in backward, which are known of no copy.
    """
    curves, targets = scratch.batch()  # (B, C, L), (B, P)
    trained = model is scratch.model
    if trained:
        scratch.backend.zero_grad(scratch.optimizer)
    else:
        model.zero_grad()
    scratch.arithmetic.backward(scratch.arithmetic.loss(model, curves, targets))
    scratch.settle()
    began_pack, buffer = now(), flat.pack() if floor else flat.buffer
    scratch.settle()
    pack_s = now() - began_pack
    raw.barrier()
    raw.settle()
    began = now()
    if floor:
        raw.allreduce_(buffer)
        raw.settle()
    else:
        scratch.backend.synchronize(scratch.optimizer)
        scratch.settle()
    span = (began, now())
    if trained:
        scratch.arithmetic.step(scratch.optimizer, scratch.backend)
    return span, pack_s


def _plain(seconds: NDArray[np.float64]) -> list[float]:
    return [round(value, 9) for value in seconds.tolist()]


def ablation_plan(made: int) -> tuple[int, int]:
    """Return pairs of blocks, and counted steps of a block, for a run that has made `made` steps.

    Together they count about as many steps as the run has, and at most 2 PAIRS STEPS; never fewer than MIN_PAIRS of
    one step.
    """
    pairs = min(PAIRS, max(MIN_PAIRS, made // (2 * STEPS)))
    return pairs, min(STEPS, max(1, made // (2 * pairs)))


def first_silent(pairs: int, seed: int) -> list[bool]:
    """Return for each pair whether its silent block comes first: two successive pairs have the two orders.

    Which of the two begins is drawn, with a seed that all ranks share, so that no rhythm of the machine is met.
    """
    drawn = np.random.default_rng(seed).integers(0, 2, size=(pairs + 1) // 2).astype(bool)
    return [bool(drawn[pair // 2] ^ pair % 2) for pair in range(pairs)]


def ablate(
    scratch: Scratch,
    *,
    seed: int,
    made: int = 2 * PAIRS * STEPS,
    clock: LapClock | None = None,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Return what is the section "ablation" of bench.json; collective, and the same on all ranks.

    `blocks` has one row per pair, kind and rank, as columns: seconds of a counted step and of its laps, means over the
    block; `other_cores` is how many cores other programs used meanwhile, on the host where most (None: not known).
    `made` is how many steps the run has made, see `ablation_plan`; all ranks give the same. Model and optimiser are
    afterwards what they were before. Raises BackendError, on every rank, if they are not, and for one worker.
    """
    # Long because all ranks go through it together: what is collective is in one place, in its order.
    backend = scratch.backend
    if backend.workers == 1:
        raise BackendError(
            "ablation: one worker has nobody to communicate with; start two or more, or leave --measure-ablation out"
        )
    clock = clock or open_clock("light", scratch.device)
    pairs, steps = ablation_plan(made)
    order = first_silent(pairs, seed)
    rows: list[dict[str, Any]] = []
    places = backend.gather((os.uname().nodename, environment.affinity()))
    host = places[backend.rank][0]
    load = evidence.OtherLoad(sorted({core for each, cores in places if each == host for core in cores}))
    with scratch.kept() as before:
        _block(scratch, clock, 3, silent=False)
        began = now()
        for pair, silent_comes_first in enumerate(order):
            if pair >= MIN_PAIRS and backend.maximum(now() - began) > limit_s:
                break
            for silent in (silent_comes_first, not silent_comes_first):
                scratch.put_back()
                means = _block(scratch, clock, steps, silent=silent)
                rows.append({"pair": pair, "silent": silent, "rank": backend.rank, **means})
    samples = backend.gather(load.sample(at_least_s=0.0))
    others = evidence.other_cores(samples, [{"host": each} for each, _ in places])
    everybody = [row for theirs in backend.gather(rows) for row in theirs]
    everybody.sort(key=lambda row: (row["pair"], row["silent"], row["rank"]))
    made_pairs = len(rows) // 2
    columns = {name: [row[name] for row in everybody] for name in ("pair", "silent", "rank", *_COLUMNS)}
    blocks = {name: None if None in column else column for name, column in columns.items()}
    return {
        "backend": backend.name,
        **{name: getattr(backend, name) for name in ("transport", "reduction", "workers")},
        "seed": seed,
        "pairs": made_pairs,
        "steps": steps,
        "silent_first": order[:made_pairs],
        "other_cores": max((each for each in others.values() if each is not None), default=None),
        "why_no_timer": "" if blocks["sync_s"] is not None else "no sync lap was timed",
        "sha256": {"before": before, "after": scratch.fingerprint()},
        "blocks": blocks,
    }


def _block(scratch: Scratch, clock: LapClock, steps: int, *, silent: bool) -> dict[str, float | None]:
    """Make `steps` steps of one kind, and one before them; return their mean laps in s, None for one not known."""
    scratch.settle()
    scratch.backend.barrier()
    with scratch.backend.no_sync() if silent else nullcontext():
        columns = scratch.timed(1 + steps, clock)
    scratch.backend.barrier()
    return {name: round(float(columns[name][1:].mean()), 9) if name in columns else None for name in _COLUMNS}


def ablation_line(found: dict[str, Any]) -> str:
    """Return what is said of it when it was measured: plain means, without the intervals that the analysis adds."""
    blocks = found["blocks"]
    silent = np.asarray(blocks["silent"], dtype=bool)
    step_s = np.asarray(blocks["step_s"])
    normal_s, alone_s = float(step_s[~silent].mean()), float(step_s[silent].mean())
    if blocks["sync_s"] is None:
        timer = f"the timer has no answer: {found['why_no_timer']}"
    else:
        timer = f"{np.asarray(blocks['sync_s'])[~silent].mean() * 1e3:.3f} ms by the timer"
    plural = "s" * (found["steps"] > 1)
    return (
        f"ablation: a step takes {normal_s * 1e3:.3f} ms with communication and {alone_s * 1e3:.3f} ms without "
        f"({found['pairs']} pairs of blocks of {found['steps']} step{plural}): it costs "
        f"{(normal_s - alone_s) * 1e3:.3f} ms, {timer}"
    )
