"""What communication costs, measured inside a training job by leaving it out.

After the timed window, blocks of two kinds of training steps alternate, with the network, batches and ranks of the
job, on the very objects that were trained:

    normal   steps as in training
    silent   steps in which every rank trains for itself (Backend.no_sync): nothing is averaged, nor copied to be

docs/explain.md explains how blocks follow each other, and what analysis/steps/attribution.py makes of them.
"""

import os
from contextlib import nullcontext
from typing import Any

import numpy as np

from horovod_study.config.run import LAPS
from horovod_study.errors import BackendError
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import LapClock, now, open_clock
from horovod_study.workload.probes.scratch import Scratch

PAIRS = 40
MIN_PAIRS = 6
"""However short the run: the spread of fewer pairs says little."""
STEPS = 20
"""Counted steps of a block."""
LIMIT_S = 60.0
"""When so much time has passed, no further pair is begun, once there are MIN_PAIRS."""

_COLUMNS = tuple(f"{lap}_s" for lap in (*LAPS, "residual", "step"))


def plan(made: int) -> tuple[int, int]:
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


def measure(
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
    `made` is how many steps the run has made, see `plan`; all ranks give the same. Model and optimiser are
    afterwards what they were before. Raises BackendError, on every rank, if they are not, and for one worker.
    """
    # Long because all ranks go through it together: what is collective is in one place, in its order.
    backend = scratch.backend
    if backend.workers == 1:
        raise BackendError(
            "ablation: one worker has nobody to communicate with; start two or more, or leave --measure-ablation out"
        )
    clock = clock or open_clock("light", scratch.device)
    pairs, steps = plan(made)
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
    blocks: dict[str, list[Any] | None] = {
        name: [row[name] for row in everybody] for name in ("pair", "silent", "rank", *_COLUMNS)
    }
    for name in _COLUMNS:
        if None in (blocks[name] or ()):
            blocks[name] = None
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


def summary(found: dict[str, Any]) -> str:
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
