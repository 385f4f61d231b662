"""Step rows of ranks that were never run: what each does on its own is given, and a collective lets all go together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.signal import lfilter

SHARES = {"update": 0.1, "residual": 0.02, "data": 0.08, "forward": 0.3, "backward": 0.5}
"""How a rank's own time is spread over its laps."""


def rows_of(
    own_s: np.ndarray,
    *,
    extra_s: Mapping[str, np.ndarray] | None = None,
    transfer_s: float | np.ndarray = 2e-4,
    stretch: int = 0,
    between_s: float = 0.5,
    visible: bool = True,
    first: int = 0,
    per_epoch: int = 0,
    opens: Sequence[int] = (),
    captured: bool = False,
) -> dict[int, dict[str, Any]]:
    """Return rank -> columns for own times (S, R) in s, to which `extra_s` adds (S, R) to a lap.

    Synchronisation k ends `transfer_s` after the last rank is ready, on all ranks at once. With `stretch`, there are
    `between_s` seconds between so many steps and the next; with `per_epoch` also a new epoch; with `opens` they are
    before these steps. Without `visible` the wait is in backward and sync is null. `captured`: as if a CUDA graph held
    data, forward and backward, of a rank alone the update too, and without `visible` the whole step.
    """
    steps, ranks = own_s.shape
    laps = {lap: share * own_s for lap, share in SHARES.items()}
    for lap, more in (extra_s or {}).items():
        laps[lap] = laps[lap] + more
    numbers = np.arange(first, first + steps)
    length = per_epoch or stretch
    opening = (numbers % length == 0) if length else np.isin(numbers, opens)
    opening[0] = True
    # The update of a step comes after its synchronisation, and belongs to the own time of the next one.
    before = np.concatenate([laps["update"][:1], laps["update"][:-1]])
    own = np.where(opening[:, None], 0, before) + sum(laps[lap] for lap in SHARES if lap != "update")
    sync = own.max(axis=1, keepdims=True) - own + np.broadcast_to(np.asarray(transfer_s), (steps,))[:, None]
    # On all ranks at once: pause, if any, update of the step before, residual, begin, ..., end of the synchronisation.
    pause = np.where(opening, between_s + before.max(axis=1), 0.0)
    ends = np.cumsum(pause + (own + sync)[:, 0])
    starts = np.concatenate([[0.0], ends[:-1]]) + pause
    begin = starts[:, None] + np.where(opening[:, None], 0, before) + laps["residual"]
    whole = sync + sum(laps.values())
    if not visible:
        laps["backward"] = laps["backward"] + sync
    unknown = dict.fromkeys(("compute",), np.full((steps, ranks), np.nan))
    if captured:
        if visible and ranks == 1:
            laps["backward"] = laps["backward"] + sync
        inside = ["data", "forward", "backward", *(["update"] if ranks == 1 or not visible else [])]
        unknown = dict.fromkeys(inside, np.full((steps, ranks), np.nan))
        laps = {
            "compute": np.stack([laps[lap] for lap in inside]).sum(axis=0),
            **{k: v for k, v in laps.items() if k not in inside},
        }
        visible = visible and ranks > 1
    laps = {**laps, **unknown}
    return {
        rank: {
            "step": numbers.astype(np.int32),
            "epoch": (numbers // per_epoch if per_epoch else numbers * 0).astype(np.int32),
            "begin_s": begin[:, rank],
            **{f"{lap}_s": values[:, rank] for lap, values in laps.items()},
            "sync_s": sync[:, rank] if visible else np.full(steps, np.nan),
            "step_s": whole[:, rank],
            "sync_host_s": np.full(steps, np.nan),
            "samples": np.full(steps, 75, dtype=np.int32),
            "loss": np.full(steps, 0.01, dtype=np.float32),
        }
        for rank in range(ranks)
    }


def noise(seed: int, steps: int, ranks: int, *, mean_s: float = 3e-3, slow: float = 0.6) -> np.ndarray:
    """Return own times (S, R) with a long tail and slow moments that last for several steps."""
    rng = np.random.default_rng(seed)
    moments: np.ndarray = lfilter([1.0], [1.0, -slow], rng.normal(0, 0.01 * mean_s, (steps, ranks)), axis=0)
    return 0.9 * mean_s + moments + rng.gamma(4, 0.025 * mean_s, (steps, ranks))


def hosts(count: int) -> Sequence[str]:
    return [f"node{rank}" for rank in range(count)]
