"""A plausible run table without running anything: what the analysis wing is developed and tested against."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

ENVIRONMENT = {
    "host": "node1",
    "cpu_model": "Imaginary EPYC 7702 64-Core Processor",
    "cores": 16,
    "os": "Linux 6.1 x86_64",
    "python": "3.11.9",
    "torch": "2.13.0",
    "mpi": "Open MPI 4.1.8",
    "package": "0.1.0",
    "started": "2026-03-14T09:26:53+00:00",
}

SYNC_MS = {
    ("horovod", "mpi"): lambda n: 0.35 + 0.10 * math.log2(n) + 0.02 * n,
    ("horovod", "gloo"): lambda n: 1.2 + 0.45 * math.log2(n) + 0.06 * n,
    ("horovod", "nccl"): lambda n: 0.15 + 0.05 * math.log2(n) + 0.015 * n,
    ("ddp", "gloo"): lambda n: 0.9 + 0.4 * math.log2(n),
}

WAYS = (("serial", "none"), ("horovod", "mpi"), ("horovod", "gloo"), ("ddp", "gloo"))


def run_table(
    workers: Sequence[int] = (1, 2, 4, 8),
    *,
    ways: Sequence[tuple[str, str]] = WAYS,
    repeats: int = 3,
    noise: float = 0.01,
    failed: Sequence[tuple[str, str, int, int]] = (("horovod", "gloo", 8, 1),),
    batch: int = 75,
    train_samples: int = 75_000,
    partition: str = "local",
    study: str = "laptop",
    seed: int = 7,
    change: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return a run table in the form of records.run_table; `failed` names (backend, transport, workers, repeat)."""
    rng = np.random.default_rng(seed)
    rows = []
    for backend, transport in ways:
        for n in (1,) if backend == "serial" else workers:
            for repeat in range(repeats):
                rows.append(_run(backend, transport, n, repeat, batch, train_samples, noise, rng))
                if (backend, transport, n, repeat) in failed:
                    rows[-1] = _failure(rows[-1])
                rows[-1] |= {"partition": partition, "study": study, **(change or {})}
    return pd.DataFrame(rows)


def evaluation_table(
    runs: pd.DataFrame,
    *,
    epochs: int = 6,
    start_mse: float = 4e-3,
    floor_mse: float = 6.8e-5,
    rate: float = 1.2,
    waste: Mapping[int, float] | None = None,
    scatter: float = 0.03,
    seed: int = 5,
) -> pd.DataFrame:
    """Return evaluations of the finished runs in the form of records.epoch_table, one per epoch.

    The test MSE is floor + (start - floor) / (epochs / waste)^rate with some scatter: `waste` says by which factor a
    worker count needs more samples.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for run in runs.to_dict("records"):
        if not math.isfinite(run["samples_per_s"]):
            continue
        for epoch in range(1, epochs + 1):
            useful = epoch / (waste or {}).get(run["workers"], 1.0)
            noise = math.exp(scatter * float(rng.standard_normal()))
            mse = floor_mse + (start_mse - floor_mse) * useful**-rate * noise
            samples = epoch * run["train_samples"]
            train_s = samples / run["samples_per_s"]
            rows.append(
                {
                    "run": run["run"],
                    "epoch": float(epoch),
                    "steps": float(samples // run["global_batch"]),
                    "samples": float(samples),
                    "train_s": train_s,
                    "wall_s": train_s + 0.4 * epoch,
                    "train_mse": 0.97 * mse,
                    "test_mse": mse,
                    "g0_rmse_mpa": 80 * math.sqrt(mse),
                    "a_rmse": 2 * math.sqrt(mse),
                    "lr": 4.7331e-4,
                }
            )
    return pd.DataFrame(rows)


def _run(
    backend: str,
    transport: str,
    n: int,
    repeat: int,
    batch: int,
    train_samples: int,
    noise: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    slow = 1 + noise * float(rng.standard_normal())
    compute = 1 + 0.01 * math.log2(n)
    alone = 0.12 if backend == "horovod" else 0.03
    laps_ms = {
        "data": 0.12,
        "forward": 0.85 * compute,
        "backward": 1.45 * compute,
        "sync": SYNC_MS[backend, transport](n) if n > 1 else alone,
        "update": 0.22,
        "residual": 0.03 + 0.01 * n,
    }
    if backend == "serial":
        laps_ms["sync"] = 0.0
    seconds = {f"{lap}_s": value * slow / 1000 for lap, value in laps_ms.items()}
    step_s = sum(seconds.values())
    if backend == "ddp" and n > 1:  # its hooks reduce inside backward, out of sight
        seconds["backward_s"] += seconds["sync_s"]
        seconds["sync_s"] = math.nan
    return {
        "run": f"laptop/{backend}-{transport}-{n:02d}-{repeat}",
        "status": "done",
        "reason": "",
        "backend": backend,
        "transport": transport,
        "workers": n,
        "nodes": 1,
        "batch": batch,
        "global_batch": batch * n,
        "train_samples": train_samples,
        "precision": "fp32",
        "reduction": "none" if n == 1 else "hooks" if backend == "ddp" else "flat",
        "horovod_defaults": False,
        "repeat": repeat,
        "samples_per_s": n * batch / step_s,
        "window_s": 950 * step_s,
        "steps": 950,
        "excluded_steps": 50,
        "step_s_median": step_s * 0.99,
        "step_s_p90": step_s * 1.06,
        **seconds,
        "step_s": step_s,
        "train_mse": 8.1e-4,
        "test_mse": 9.0e-4 + 1e-5 * repeat,
        "g0_rmse_mpa": 0.41,
        "a_rmse": 0.012,
        "epochs": 3.0,
        "rss_mb_max": 460.0,
        "pss_mb_max": 310.0,
        **ENVIRONMENT,
        "horovod": "0.28.1" if backend == "horovod" else None,
    }


MEASURED = ("samples_per_s", "window_s", "steps", "excluded_steps", "step_s_median", "step_s_p90", "step_s")
LAPS = ("data_s", "forward_s", "backward_s", "sync_s", "update_s", "residual_s")
RESULTS = ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "rss_mb_max", "pss_mb_max")


def _failure(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run as it is recorded when it died before the timed window."""
    nothing = dict.fromkeys((*MEASURED, *LAPS, *RESULTS), math.nan)
    return {**run, **nothing, "status": "failed", "reason": "rank 3 ended with exit code 137 (killed: out of memory)"}
