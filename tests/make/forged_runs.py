"""What test_mission.py reads: run directories whose every answer is known, and files as other programs write them.

Nothing of the package is imported: the format of a run directory, of schema 4, is written down here once more.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

PARAMETERS = 153_441
LAPS = ("data_s", "forward_s", "backward_s", "sync_s", "update_s", "residual_s")
COLUMNS = pa.schema(
    [("step", pa.int32()), ("epoch", pa.int32()), ("begin_s", pa.float64())]
    + [(name, pa.float64()) for name in (*LAPS[:1], "compute_s", *LAPS[1:], "step_s", "sync_host_s")]
    + [("samples", pa.int32()), ("loss", pa.float32())]
)
"""Of a step row."""
SHARES = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5, "update_s": 0.1}
PER_NODE, STEPS, WARM = 4, 100, 10
EPOCH = 60_000


def write(path: Path, text: str) -> Path:
    """Write a text, with the folders above it, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def forge(
    folder: Path,
    backend: str = "serial",
    transport: str = "none",
    *,
    own_ms: Sequence[float] = (4.0,),
    sync_ms: float = 0.0,
    residual_ms: float = 0.0,
    batch: int = 50,
    repeat: int = 0,
    mse: Sequence[float] = (),
    gpu_w: float = 0.0,
    bench: dict[str, Any] | None = None,
) -> Path:
    """Write a run directory of schema 4 in which every step of a rank takes what is given here, and return it.

    A rank works for its `own_ms`; all go on `sync_ms` after the last one is ready. `mse`: test errors after each epoch.
    """
    workers, longest = len(own_ms), max(own_ms)
    step_s = (longest + sync_ms + residual_ms) / 1e3
    hosts = [f"node{rank // PER_NODE + 1}" for rank in range(workers)]
    run = folder / f"{backend}-{transport}-{workers}w-b{batch}-r{repeat}"
    run.mkdir(parents=True)
    means = dict.fromkeys(LAPS, 0.0)
    count = WARM + STEPS
    for rank, own in enumerate(own_ms):
        laps = {name: share * own / 1e3 for name, share in SHARES.items()}
        laps |= {"sync_s": (longest - own + sync_ms) / 1e3, "residual_s": residual_ms / 1e3}
        means = {name: means[name] + laps[name] / workers for name in LAPS}
        steps = np.arange(count)
        known = {"step": steps, "epoch": 0 * steps, "begin_s": steps * step_s, "samples": 0 * steps + batch}
        known |= {name: np.full(count, value) for name, value in {**laps, "step_s": step_s, "loss": 0.01}.items()}
        columns = [
            pa.array(known[each.name], each.type) if each.name in known else pa.nulls(count, each.type)
            for each in COLUMNS
        ]
        with pa.OSFile(str(run / f"steps-{rank:05d}.arrows"), "wb") as file, pa.ipc.new_stream(file, COLUMNS) as stream:
            stream.write_table(pa.table(columns, schema=COLUMNS))
    rate = workers * batch / step_s
    totals: dict[str, Any] = {
        **means,
        "step_s": step_s,
        "step_s_median": step_s,
        "step_s_p90": step_s,
        "samples_per_s": rate,
        "window_s": STEPS * step_s,
        "steps": STEPS,
        "excluded_steps": WARM,
        "steady": {"step": WARM, "declared": WARM, "found_by": "declared", "doubt": ""},
        "rows_lost": [0] * workers,
    }
    if mse:
        lines = ["epoch,steps,samples,train_s,wall_s,train_mse,test_mse,g0_rmse_mpa,a_rmse,lr"]
        for epoch, error in enumerate(mse, 1):
            at_s = epoch * EPOCH / rate
            lines.append(
                f"{epoch},{epoch * EPOCH // (batch * workers)},{epoch * EPOCH},{at_s},{at_s},{error},{error},1,1,0.001"
            )
        write(run / "epochs.csv", "\n".join(lines) + "\n")
        totals |= {"test_mse": mse[-1], "train_mse": mse[-1], "epochs": float(len(mse))}
    if gpu_w:
        joules = gpu_w * workers * STEPS * step_s
        per_sample = joules / (STEPS * workers * batch)
        totals["energy"] = {"counter_j": joules, "integral_j": joules, "total_j": joules, "per_sample_j": per_sample}
        of_host = {host: [f"gpu {gpu}" for gpu in range(hosts.count(host))] for host in hosts}
        read = {
            host: {"gpu_percent": dict.fromkeys(gpus, 80.0), "power_w": dict.fromkeys(gpus, gpu_w)}
            for host, gpus in of_host.items()
        }
        totals["system"] = {"reason": "", "hosts": read}
    if bench:
        write(run / "bench.json", json.dumps({"schema": 1, **bench}))
    stamp = f"2026-03-14T09:{repeat:02d}"
    content = {
        "schema": 4,
        "study": "forged",
        "key": run.name,
        "repeat": repeat,
        "partition": "alpha",
        "status": "done",
        "started": f"{stamp}:00+00:00",
        "finished": f"{stamp}:30+00:00",
        "host": "node1",
        "pid": 1,
        "requested": {"backend": backend, "batch": batch, "steps": STEPS, "warmup_steps": WARM, "steady": "declared"},
        "effective": {
            "backend": backend,
            "transport": transport,
            "reduction": "none" if workers == 1 else "flat",
            "workers": workers,
            "nodes": math.ceil(workers / PER_NODE),
            "batch": batch,
            "global_batch": batch * workers,
            "precision": "fp32",
            "device": "cuda" if gpu_w else "cpu",
            "parameters": PARAMETERS,
            "train_samples": EPOCH,
            "warmup_steps": WARM,
            "ranks": [
                {"host": host, "local_rank": rank % PER_NODE, "pid": 10 + rank, "threads": 1}
                for rank, host in enumerate(hosts)
            ],
        },
        "environment": {"cpu_model": "Imaginary", "cores": 4, "python": "3.11", "torch": "2.13.0", "package": "0.1.0"},
        "totals": totals,
    }
    write(run / "run.json", json.dumps(content))
    return run


BATCHES = (10, 20, 50, 100, 200, 400, 800)
COUNTS = (1, 2, 4, 8, 16)
HOPS_MS = {"nccl": 0.1, "mpi": 0.3}
TARGET, FAR = 0.01, 0.0025
"""Test errors; the second is reached by plain runs only."""


def plain_ms(batch: int) -> float:
    """A step of one plain worker: 2 ms, and 0.04 ms a sample, so that half of the best rate is reached at 50."""
    return 2.0 + 0.04 * batch


def waits_ms(transport: str, workers: int) -> float:
    """The exposed synchronisation: a hop for each doubling, and 1 ms more beyond the first node."""
    return HOPS_MS[transport] * math.log2(workers) + (1.0 if workers > PER_NODE else 0.0)


def step_ms(transport: str, workers: int) -> float:
    """A step of the forged runs of batch 50."""
    return 1.1 * plain_ms(50) + waits_ms(transport, workers)


def mlperf(folder: Path, nodes: int, block_s: float) -> None:
    """Write two result logs of a system with so many nodes of 8, as MLCommons publishes them."""
    system = {
        "number_of_nodes": str(nodes),
        "accelerators_per_node": "8",
        "accelerator_model_name": "A100",
        "framework": "MXNet 1",
    }
    write(folder / f"Org/systems/box{nodes}.json", json.dumps(system))
    events: list[tuple[float, str, Any, dict[str, Any]]] = [
        (0, "submission_benchmark", "resnet", {}),
        (1, "global_batch_size", 3264, {}),
        (2, "train_samples", 1_281_167, {}),
    ]
    at_s = 10.0
    for block in range(4):
        epoch = {"first_epoch_num": 1 + 4 * block}
        events.append((at_s, "block_start", None, {**epoch, "epoch_count": 4}))
        at_s += block_s * (2 if block == 0 else 1)
        events.append((at_s, "block_stop", None, epoch))
    events.append((at_s + 1, "run_stop", "success", {"status": "success"}))
    lines = [
        ":::MLLOG "
        + json.dumps({"namespace": "", "time_ms": round(1e3 * when), "key": key, "value": value, "metadata": about})
        for when, key, value, about in events
    ]
    for repeat in range(2):
        write(folder / f"Org/results/box{nodes}/resnet/result_{repeat}.txt", "\n".join(lines) + "\n")


def nccl_tests(workers: int) -> str:
    """What all_reduce_perf prints where an all-reduce takes 20 us and a second for 100 GB."""
    device = "#  Rank {0:2} Group  0 Pid {0:6} on host0 device {0:2} [0000:0f:00] NVIDIA A100-SXM4-40GB"
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 4(factor)", "# Using devices"]
    lines += [device.format(rank) for rank in range(workers)]
    lines += [f"#       size         count      type   redop    root{2 * '     time   algbw   busbw #wrong'}"]
    for size in (8 * 4**k for k in range(13)):
        micros = 20 + size / 100e3
        rate = size / micros / 1e3
        lines.append(
            f"{size:12} {size // 4:12}     float     sum      -1"
            + f"  {micros:9.3f}  {rate:6.2f}  {rate * 2 * (workers - 1) / workers:6.2f}      0" * 2
        )
    return "\n".join(lines) + "\n"


OSU = """# OSU MPI Allreduce Latency Test v7.5
# Size       Avg Latency(us)
4                      10.00
1024                   12.00
1048576              1058.58
"""


def kineto(rank: int, late_ms: float = 0.0) -> dict[str, Any]:
    """A trace of torch.profiler: 12 steps of 20 ms, in each a kernel of 10 ms and an all-reduce from 6 to 14 ms."""
    spans: list[tuple[str, str, float, float]] = []
    for step in range(12):
        at_ms = 20.0 * step
        spans += [
            (f"ProfilerStep#{step}", "user_annotation", at_ms, 20),
            ("Optimizer.step#SGD.step", "user_annotation", at_ms + 15, 2),
            ("gemm", "kernel", at_ms, 10),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "kernel", at_ms + 6 + late_ms, 8 - late_ms),
        ]
    events = [
        {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * begin, "dur": 1e3 * took, "args": {}}
        for name, cat, begin, took in spans
    ]
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}


def inspector(rank: int, late: int) -> str:
    """What NCCL Inspector writes of one of four ranks, of which one comes 300 us late to each of 40 all-reduces."""
    header = {"id": "0x7f", "comm_name": "unknown", "rank": rank, "n_ranks": 4, "nnodes": 2}
    lines = []
    for number in range(40):
        micros = 100 + (number + rank) % 3 + 300 * (rank != late)
        done = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 65_536, "coll_exec_time_us": micros}
        done |= {
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 65.536 / micros,
            "coll_busbw_gbs": 98.304 / micros,
        }
        about: dict[str, Any] = {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
        }
        about |= {
            "dump_timestamp_us": 1_748_030_377_748_202 + number,
            "hostname": f"node{rank // 2}",
            "pid": 100 + rank,
        }
        lines.append(json.dumps({"header": header, "metadata": about, "coll_perf": done}))
    return "\n".join(lines) + "\n"
