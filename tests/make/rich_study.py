"""A study in memory that has something for every table and most figures; the truth behind it is synthetic_runs.py."""

import pandas as pd

from horovod_study.analysis.study import Analysis, analyze
from make.synthetic_runs import evaluation_table, run_table

WAYS = (("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"))
NODES = {"alpha": 8, "gpu_2 & more": 4}
"""GPUs per node of each partition."""


def rich_runs(
    *,
    reason: str = "rank 3 ended",
    study: str = "thesis",
    partitions: dict[str, int] | None = None,
    ways: tuple[tuple[str, str], ...] = WAYS,
) -> pd.DataFrame:
    """Return runs over two partitions, two transports and node boundaries, three batches on the first, with energy.

    The largest cell of the last partition gave no result, for `reason`.
    """
    parts = []
    for seed, (partition, per_node) in enumerate((partitions or NODES).items(), start=1):
        sizes = {75: (1, 2, 4, 8, 16), **({256: (4,), 1024: (4,)} if seed == 1 else {})}
        for batch, workers in sizes.items():
            table = run_table(
                workers,
                ways=ways,
                batch=batch,
                partition=partition,
                study=study,
                seed=seed + batch,
                failed=(),
                noise=0.02,
            )
            table["nodes"] = -(-table["workers"] // per_node)
            table["per_node"] = [
                f"{nodes}x{min(workers, per_node)}"
                for nodes, workers in zip(table["nodes"], table["workers"], strict=True)
            ]
            computing_s, waiting_s = 0.0005 * (batch / 75 - 1), 0.0002 * (table["nodes"] - 1)
            grown = (table["step_s"] + computing_s + waiting_s) / table["step_s"]
            table["backward_s"] += computing_s
            table["sync_s"] += waiting_s
            table["samples_per_s"] /= grown
            table["step_s"] *= grown
            table["device"], table["energy_of"] = "cuda", "gpu"
            table["energy_per_sample_j"] = 250.0 * table["workers"] / table["samples_per_s"]
            table["energy_j"] = table["energy_per_sample_j"] * table["samples_per_s"] * table["window_s"]
            parts.append(table)
    frame = pd.concat(parts, ignore_index=True)
    frame["run"] = [f"{study}/run_{place:03d}" for place in range(len(frame))]
    dead = (
        (frame["workers"] == 16) & (frame["transport"] == "nccl") & (frame["partition"] == frame["partition"].iloc[-1])
    )
    measured = ["samples_per_s", "step_s", "window_s", "steps", "energy_j", "energy_per_sample_j"]
    frame.loc[dead, measured] = float("nan")
    frame.loc[dead, "status"], frame.loc[dead, "reason"] = "failed", reason
    return frame


def rich_analysis(runs: pd.DataFrame) -> Analysis:
    """Return the analysis of rich_runs, with learning curves of the runs of batch 75 and one target."""
    learning = runs[(runs["batch"] == 75) & (runs["status"] == "done")].sort_values("run", kind="stable")
    return analyze(runs, evaluation_table(learning, waste={8: 1.2, 16: 1.5}), targets=(5e-4,))
