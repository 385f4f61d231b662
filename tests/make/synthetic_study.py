"""A study of a cluster that does not exist, as run directories on disk, with the truth it was made from.

    write_study(folder, partitions=("alpha", "gpu2"), ways=..., workers=(1, 2, 4, 8, 16), ...)

Everything `horovod-study` reads of a run is there: run.json, step rows whose laps tile, evaluations, samples of every
host (GPU use, memory and power; processors), and what --measure-sync writes. All of it goes through records/.
The study is called "synthetic", its hosts node1, node2, ..., its processor "Imaginary".

The truth. A step of N workers with batch B takes, on every rank and in the mean,

    T = own + sync      own = fixed + B per_sample      sync = transfer + cycle / 2 + skew
    transfer = 2 (N - 1) (latency + bytes / (N bandwidth))       a ring; other constants once it leaves a node
    skew = scatter own (H - 1)      H = 1 + 1/2 + ... + 1/N: the mean of the largest of N exponential delays

and a repeat takes e^z of that, z normal with standard deviation `noise`. `Truth` answers with these formulas.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from horovod_study import records
from horovod_study.config.run import LAPS
from horovod_study.measure import energy, system
from horovod_study.strain.options import StrainConfig
from make.rank_rows import rows_of

GRADIENT_BYTES = 613_764
FLOOR_MSE = 6.9e-5
ALONE_S = 8e-5
"""What the library takes of the step of one wrapped worker, who communicates with nobody."""
DATA = 1_000_000
INTERVAL_S = 0.1
START_S = 0.5
BETWEEN_S = 0.3
"""Evaluation, and whatever else is between two stretches of steps."""

Way = tuple[str, str]
Cell = tuple[str, str, str, int, int, int]
"""partition, backend, transport, workers, batch, repeat"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A ring's constants for one hop."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A kind of node. `links`: transport -> (within a node, between nodes)."""

    per_node: int
    cores: int
    fixed_s: float
    per_sample_s: float
    links: Mapping[str, tuple[Link, Link]]
    gpu: str = ""
    idle_w: float = 0.0
    busy_w: float = 0.0


_SLOW = Link(latency_s=45e-6, bytes_per_s=1.6e9)
SITES: Mapping[str, Site] = {
    "alpha": Site(
        per_node=8,
        cores=48,
        fixed_s=2.0e-3,
        per_sample_s=2.5e-6,
        links={
            "nccl": (Link(latency_s=8e-6, bytes_per_s=40e9), Link(latency_s=20e-6, bytes_per_s=8e9)),
            "mpi": (Link(latency_s=20e-6, bytes_per_s=5e9), _SLOW),
        },
        gpu="Imaginary A100",
        idle_w=55.0,
        busy_w=300.0,
    ),
    "gpu2": Site(
        per_node=4,
        cores=24,
        fixed_s=5.0e-3,
        per_sample_s=20e-6,
        links={
            "nccl": (Link(latency_s=15e-6, bytes_per_s=8e9), Link(latency_s=40e-6, bytes_per_s=3e9)),
            "mpi": (Link(latency_s=30e-6, bytes_per_s=3e9), replace(_SLOW, latency_s=70e-6)),
        },
        gpu="Imaginary K80",
        idle_w=30.0,
        busy_w=145.0,
    ),
    "local": Site(
        per_node=64,
        cores=4,
        fixed_s=1.5e-3,
        per_sample_s=26e-6,
        links={
            "mpi": (Link(latency_s=20e-6, bytes_per_s=4e9), _SLOW),
            "gloo": (Link(latency_s=120e-6, bytes_per_s=1.5e9), _SLOW),
        },
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """What the runs of one cell were made from, in s per step."""

    site: Site
    transport: str
    workers: int
    batch: int
    cycle_s: float
    scatter: float

    @property
    def nodes(self) -> int:
        return math.ceil(self.workers / self.site.per_node)

    @property
    def own_s(self) -> float:
        return self.site.fixed_s + self.batch * self.site.per_sample_s

    @property
    def transfer_s(self) -> float:
        if self.transport == "none":
            return 0.0
        if self.workers == 1:
            return ALONE_S
        link = self.site.links[self.transport][self.nodes > 1]
        return 2 * (self.workers - 1) * (link.latency_s + GRADIENT_BYTES / self.workers / link.bytes_per_s)

    @property
    def skew_s(self) -> float:
        return self.scatter * self.own_s * (sum(1 / each for each in range(1, self.workers + 1)) - 1)

    @property
    def sync_s(self) -> float:
        return self.transfer_s + (self.cycle_s / 2 if self.workers > 1 else 0.0) + self.skew_s

    @property
    def samples_per_s(self) -> float:
        return self.workers * self.batch / (self.own_s + self.sync_s)


def truth(partition: str, way: Way, workers: int, batch: int, *, cycle_s: float = 2e-4, scatter: float = 0.03) -> Truth:
    """Return what `write_study` makes a cell from; only Horovod has a cycle."""
    cycle_s = cycle_s if way[0] == "horovod" else 0.0
    return Truth(
        site=SITES[partition], transport=way[1], workers=workers, batch=batch, cycle_s=cycle_s, scatter=scatter
    )


def write_study(
    directory: Path,
    *,
    partitions: Sequence[str] = ("alpha",),
    ways: Sequence[Way] = (("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi")),
    workers: Sequence[int] = (1, 2, 4, 8, 16),
    batches: Sequence[int] = (75,),
    repeats: int = 3,
    steps: int = 300,
    seed: int = 1,
    warmup: int = 20,
    evaluations: int = 4,
    noise: float = 0.005,
    cycle_s: float = 2e-4,
    scatter: float = 0.03,
    failed: Mapping[Cell, str] | None = None,
    missing: Collection[Cell] = (),
    study: str = "synthetic",
    captured: bool = False,
) -> Path:
    """Write the run directories of a study below `directory` and return it.

    `steps` of each run, the first `warmup` outside the timed window; `evaluations` at equal distances. `captured`: the
    rows are those of steps in CUDA graphs, of ddp with the average inside, with three quarters of the own time; their
    directories can be beside those of ordinary steps. `failed` says which runs died after their warm-up, and why;
    `missing` which were never started.
    """
    cells = [
        (partition, way, count, batch)
        for partition in partitions
        for batch in batches
        for way in ways
        for count in ((1,) if way[0] == "serial" else workers)
    ]
    order = np.random.default_rng(seed)
    number = 0
    for repeat in range(repeats):  # blocks in random order, as the study runner does it
        for place in order.permutation(len(cells)):
            partition, way, count, batch = cells[place]
            name = (partition, *way, count, batch, repeat)
            if name in missing:
                continue
            _write_run(
                directory / f"{partition}-{way[0]}-{way[1]}-{count:02d}w-b{batch}{'-graphs' * captured}-r{repeat}",
                truth(partition, way, count, batch, cycle_s=cycle_s, scatter=scatter),
                partition=partition,
                way=way,
                repeat=repeat,
                steps=steps,
                warmup=warmup,
                evaluations=evaluations,
                factor=math.exp(noise * np.random.default_rng([seed, place, repeat]).standard_normal()),
                rng=np.random.default_rng([seed, place, repeat, 1 + captured]),
                started=datetime(2026, 3, 14, 9, tzinfo=UTC) + timedelta(minutes=2 * number),
                reason=(failed or {}).get(name, ""),
                study=study,
                captured=captured,
            )
            number += 1
    return directory


@dataclass(frozen=True, kw_only=True, slots=True)
class _Course:
    """The rows of a run, and where its stretches of timed steps and its evaluations lie, in s of the run."""

    rows: Mapping[int, dict[str, Any]]
    starts: tuple[int, ...]  # first steps of stretches
    stretches: list[list[float]] = field(default_factory=list)
    timed_stretches: list[list[float]] = field(default_factory=list)


def _write_run(
    directory: Path,
    known: Truth,
    *,
    partition: str,
    way: Way,
    repeat: int,
    steps: int,
    warmup: int,
    evaluations: int,
    factor: float,
    rng: np.random.Generator,
    started: datetime,
    reason: str,
    study: str,
    captured: bool,
) -> None:
    if captured:
        site = known.site
        known = replace(known, site=replace(site, fixed_s=0.75 * site.fixed_s, per_sample_s=0.75 * site.per_sample_s))
    made = warmup + (steps - warmup) // 3 if reason else steps
    visible = way[0] != "ddp"
    course = _course(known, made, steps, warmup, evaluations, factor, rng, visible=visible, captured=captured)
    end_s = course.stretches[-1][1]
    record = _record(
        directory.name, known, partition, way, repeat, steps, warmup, evaluations, started, study, captured
    )
    records.create_run(directory, record)
    for rank, columns in course.rows.items():
        writer = records.StepWriter(directory, rank)
        writer.append(columns)
        writer.close()
    learned = _evaluations(known, course, steps, warmup, rng)
    for row in learned:
        records.append_epoch(directory, row)
    hosts = [_sample(directory, host, known, course, rng) for host in _hosts(known)]
    finished = (started + timedelta(seconds=end_s + 5)).isoformat()
    if reason:
        records.finish_run(directory, record, status="failed", finished=finished, totals={}, reason=reason)
        return
    if known.workers > 1 and way[0] != "ddp":
        records.write_bench(directory, "synchronisation", _bench(known, way, factor, rng))
    totals = {
        **_totals(known, course, steps, warmup),
        "epochs": steps / per_epoch(known),
        **{name: learned[-1][name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse")},
        **{name: learned[-1][name] for name in ("train_s", "wall_s")},
        "target_reached": None,
        "rss_mb_max": 2400.0,
        "pss_mb_max": 2100.0,
        **system.totals(hosts, samples=(steps - warmup) * known.batch * known.workers),
        "parameter_sha256": f"{repeat:064x}",
    }
    records.finish_run(directory, record, status="done", finished=finished, totals=totals)


def per_epoch(known: Truth) -> int:
    """Return the steps of an epoch: what is left of a batch is left out."""
    return max(1, DATA // (known.batch * known.workers))


def _train_mse(course: _Course, steps: int) -> float:
    """Return the mean loss of the epoch so far, over its steps and the ranks, as train.py tells it."""
    means = []
    for columns in course.rows.values():
        epoch = columns["epoch"][:steps]
        means.append(float(columns["loss"][:steps][epoch == epoch[-1]].mean(dtype=np.float64)))
    return math.fsum(means) / len(means)


def _course(
    known: Truth,
    made: int,
    steps: int,
    warmup: int,
    evaluations: int,
    factor: float,
    rng: np.random.Generator,
    *,
    visible: bool,
    captured: bool,
) -> _Course:
    """Return the first `made` of `steps` steps: own times with exponential delays, a ring, and Horovod's cycle."""
    shape = (made, known.workers)
    own = np.full(shape, factor * known.own_s * (1 - known.scatter))
    delay = factor * known.own_s * known.scatter * rng.exponential(size=shape)
    wait = rng.uniform(0, known.cycle_s, made) if known.workers > 1 else np.zeros(made)
    ends = np.linspace(warmup, steps, evaluations + 1).astype(int)[1:-1]
    starts = (0, *(int(each) for each in (warmup, *ends) if 0 < each < made))
    rows = rows_of(
        own,
        extra_s={"backward": delay},
        transfer_s=factor * (known.transfer_s + wait),
        between_s=BETWEEN_S,
        visible=visible,
        opens=starts,
        captured=captured,
    )
    epoch = (np.arange(made) // per_epoch(known)).astype(np.int32)
    loss = FLOOR_MSE + 0.05 / (1 + np.arange(made) * known.batch * known.workers / 2e4)
    for columns in rows.values():
        columns["begin_s"] += START_S
        columns["epoch"] = epoch
        columns["samples"] = np.full(made, known.batch, dtype=np.int32)
        columns["loss"] = (loss * rng.uniform(0.95, 1.05, made)).astype(np.float32)
    first = rows[0]
    edges = [*starts, made]
    starts_s = first["begin_s"] - first["residual_s"]
    stretches = [[float(starts_s[a]), float(starts_s[b - 1] + first["step_s"][b - 1])] for a, b in pairwise(edges)]
    timed = [each for each, start in zip(stretches, starts, strict=True) if start >= warmup]
    return _Course(rows=rows, starts=starts, stretches=stretches, timed_stretches=timed)


def _totals(known: Truth, course: _Course, steps: int, warmup: int) -> dict[str, Any]:
    """Return the totals of the window as train.py makes them of the same rows."""
    names = [f"{lap}_s" for lap in (*LAPS, "residual", "step")]
    timed = {rank: {name: columns[name][warmup:] for name in names} for rank, columns in course.rows.items()}
    window_s = max(float(columns["step_s"].sum()) for columns in timed.values())
    count = steps - warmup

    def over_ranks(name: str, each: Any) -> list[float]:
        return [float(each(columns[name])) for columns in timed.values()]

    def mean(name: str, each: Any) -> float | None:
        value = float(np.mean(over_ranks(name, each)))
        return None if math.isnan(value) else value

    return {
        "samples_per_s": count * known.batch * known.workers / window_s,
        "window_s": window_s,
        "steps": count,
        "excluded_steps": warmup,
        "steady": {"step": warmup, "declared": warmup, "found_by": "declared", "doubt": ""},
        "step_s_median": max(over_ranks("step_s", np.median)),
        "step_s_p90": max(over_ranks("step_s", lambda values: np.quantile(values, 0.9))),
        **{name: mean(name, np.mean) for name in names},
        "lap_medians_s": {lap: mean(f"{lap}_s", np.median) for lap in (*LAPS, "residual")},
        "rows_lost": [0] * known.workers,
    }


def _evaluations(
    known: Truth, course: _Course, steps: int, warmup: int, rng: np.random.Generator
) -> list[dict[str, float]]:
    """Return the rows of epochs.csv: a power law of samples, of which large global batches use less."""
    found, train_s = [], 0.0
    per_step = known.batch * known.workers
    edges = [*course.starts, len(course.rows[0]["step"])]
    for (begin_s, end_s), start, end in zip(course.stretches, course.starts, edges[1:], strict=True):
        if start < warmup:
            continue
        train_s += end_s - begin_s
        useful = end * per_step / (1 + per_step / 30_000)
        mse = FLOOR_MSE + 0.05 * (1 + useful / 2e3) ** -1.1 * math.exp(0.02 * rng.standard_normal())
        found.append(
            {
                "epoch": end / per_epoch(known),
                "steps": end,
                "samples": end * per_step,
                "train_s": train_s,
                "wall_s": end_s + 0.5 * BETWEEN_S,
                "train_mse": _train_mse(course, end),
                "test_mse": mse,
                "g0_rmse_mpa": 2000 * math.sqrt(mse),
                "a_rmse": 20 * math.sqrt(mse),
                "lr": 4.7331e-4,
            }
        )
    return found


# ---------------------------------------------------------------------------------------------------- system


def _hosts(known: Truth) -> list[str]:
    return [f"node{number + 1}" for number in range(known.nodes)]


def _ranks(known: Truth, host: str) -> list[int]:
    first = _hosts(known).index(host) * known.site.per_node
    return list(range(first, min(first + known.site.per_node, known.workers)))


def gpu_percent(known: Truth) -> float:
    """Return how busy a GPU is in the timed steps: the computing share of the step, fuller with larger batches."""
    fill = 0.35 + 0.65 * known.batch / (known.batch + 400)
    return 100 * fill * known.own_s / (known.own_s + known.sync_s)


def power_w(known: Truth) -> float:
    """Return what a GPU draws in the timed steps."""
    return known.site.idle_w + (known.site.busy_w - known.site.idle_w) * gpu_percent(known) / 100


def _sample(directory: Path, host: str, known: Truth, course: _Course, rng: np.random.Generator) -> dict[str, Any]:
    """Write the samples of one host and return what its sampler would have told of them."""
    ranks, site = _ranks(known, host), known.site
    at_s = np.arange(-0.6, course.stretches[-1][1] + 3 * INTERVAL_S, INTERVAL_S)
    before = np.concatenate([at_s[:1] - INTERVAL_S, at_s[:-1]])
    first_s, last_s = course.stretches[0][0], course.stretches[-1][1]
    # The share of each interval in which the run computed: steps, and evaluations between them.
    busy = np.clip(np.minimum(last_s, at_s) - np.maximum(first_s, before), 0, None) / INTERVAL_S
    devices = {f"gpu {place}": site.gpu for place in range(len(ranks))} if site.gpu else {}
    missing = {"rdma": "no InfiniBand or RoCE device", "package": "no permission to read the energy counters"}
    if not devices:
        missing["gpu"] = "the ranks of this host use no GPU"
    meta = {
        "interval_s": INTERVAL_S,
        "ranks": {str(rank): 4711 + rank for rank in ranks},
        "devices": devices,
        "missing": missing,
        "cores": site.cores,
    }
    parts: dict[str, dict[str, np.ndarray]] = {}
    own = np.zeros(len(at_s))
    for rank in ranks:
        cpu = 100 * (0.15 + 0.83 * busy) * rng.uniform(0.99, 1.01, len(at_s))
        own += cpu
        parts[f"rank {rank}"] = {
            "cpu_percent": cpu,
            "rss_mb": 2400.0 * (1 - 0.4 * np.exp(-np.maximum(at_s + 0.6, 0) / 0.3)),
            "own_mb": 1500.0 * (1 - 0.4 * np.exp(-np.maximum(at_s + 0.6, 0) / 0.3)),
            "processes": np.ones(len(at_s)),
            "threads": np.full(len(at_s), 12.0),
        }
    parts["host"] = {
        "cpu_percent": own + 3.0,
        "available_mb": np.full(len(at_s), 300_000.0 - 2400 * len(ranks)),
        "load1": np.full(len(at_s), 0.9 * len(ranks)),
        "sampler_cpu_percent": np.full(len(at_s), 0.4),
    }
    for part in devices:
        use = gpu_percent(known) / 100 * busy * rng.uniform(0.98, 1.02, len(at_s))
        power = site.idle_w + (site.busy_w - site.idle_w) * use
        steps_j = np.concatenate([[0.0], np.diff(at_s) * (power[1:] + power[:-1]) / 2])
        parts[part] = {
            "gpu_percent": 100 * use,
            "gpu_memory_mb": np.full(len(at_s), 1500.0 + 1.2 * known.batch),
            "sm_mhz": np.full(len(at_s), 1410.0),
            "temperature_c": np.full(len(at_s), 52.0),
            "power_w": power,
            "energy_j": np.cumsum(steps_j),
        }
    writer = records.SystemWriter(directory, host, meta, keep_before_s=None)
    rows: list[dict[str, Any]] = []
    for place, time in enumerate(at_s.tolist()):
        for part, columns in parts.items():
            interval_s = None if part in devices else INTERVAL_S
            values = {name: float(column[place]) for name, column in columns.items()}
            rows.append({"at_s": time, "part": part, "interval_s": interval_s, **values})
    writer.append(rows)
    writer.close()
    columns, _ = records.system_columns(directory, host)
    told = {
        "host": host,
        "samples": len(at_s),
        "missing": missing,
        "ended": "",
        "cost_of_sampling": {"cpu_s": 0.004 * len(at_s) * INTERVAL_S, "wall_s": len(at_s) * INTERVAL_S}
        | {"share_of_core": 0.004, "start_cpu_s": 0.2},
        "interval_s": INTERVAL_S,
    }
    stretches = course.timed_stretches
    if stretches:
        told |= energy.host_summary(columns, stretches)
    joules = energy.host_energy(columns, devices, stretches, host=host, interval_s=INTERVAL_S) if stretches else []
    return {**told, "energy": joules}


# ---------------------------------------------------------------------------------------------------- records


def _bench(known: Truth, way: Way, factor: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return what --measure-sync would find: the raw transfer, and the same through the library."""
    count = 80
    floor = factor * known.transfer_s * rng.uniform(1.0, 1.02, count)
    pack = np.full(count, 8e-6)
    through = floor + pack + rng.uniform(0, known.cycle_s, count)
    return {
        "transport": way[1],
        "reduction": "flat",
        "workers": known.workers,
        "gradient_bytes": GRADIENT_BYTES,
        "block": 10,
        "clock": "common" if known.nodes == 1 else "own",
        "floor_s": floor.tolist(),
        "pack_s": pack.tolist(),
        "through_s": through.tolist(),
        "why_not_through": "",
    }


def _path(known: Truth, way: Way) -> list[str]:
    if known.workers == 1:
        return []
    within = "p2p" if way[1] == "nccl" else "tcp:lo" if way[1] == "gloo" else "shared memory"
    return [within] if known.nodes == 1 else ["infiniband:mlx5_0", within]


def _record(
    key: str,
    known: Truth,
    partition: str,
    way: Way,
    repeat: int,
    steps: int,
    warmup: int,
    evaluations: int,
    started: datetime,
    study: str,
    captured: bool,
) -> records.RunRecord:
    backend, transport = way
    parallel = backend != "serial"
    gpu, hosts = known.site.gpu, _hosts(known)
    requested = vars(
        StrainConfig(
            dataset=str(DATA),
            backend=backend,
            transport=transport if parallel else "auto",
            batch=known.batch,
            steps=steps,
            warmup_steps=warmup,
            steady="declared",
            measure_sync=True,
            system_interval_s=INTERVAL_S,
            seed=repeat + 1,
            study=study,
            partition=partition,
            repeat=repeat,
            cuda_graphs=captured,
            capture_sync=captured and (backend, transport) == ("ddp", "nccl"),
        )
    )
    reduction = "none" if known.workers == 1 else "hooks" if backend == "ddp" and not captured else "flat"
    cycle = {"HOROVOD_CYCLE_TIME": {"value": f"{1e3 * known.cycle_s:g}", "source": "shipped"}}
    ranks = [
        {
            "host": hosts[rank // known.site.per_node],
            "local_rank": rank % known.site.per_node,
            "pid": 4711 + rank,
            "cores": [rank % known.site.per_node],
            "threads": 1,
            "device": f"cuda:{rank % known.site.per_node}" if gpu else "cpu",
            "gpu": {"name": gpu, "uuid": f"GPU-{rank:08d}"} if gpu else None,
            "lr": 4.7331e-4,
            "communication": {"cycle_time_ms": 1e3 * known.cycle_s} if backend == "horovod" else {},
            "path": _path(known, way),
        }
        for rank in range(known.workers)
    ]
    effective = {
        "backend": backend,
        "transport": transport,
        "reduction": reduction,
        "launcher": "srun" if parallel and gpu else "mpirun" if parallel else "none",
        "settings": cycle if backend == "horovod" else {},
        "workers": known.workers,
        "nodes": known.nodes,
        "batch": known.batch,
        "global_batch": known.batch * known.workers,
        "lr": 4.7331e-4,
        "optimizer": "Adam, fused",
        "schedule": "constant",
        "precision": "fp32",
        "widths": "15-38-197",
        "input_scaling": "none",
        "memory_format": "channels-last",
        "loader": "memory",
        "device": "cuda" if gpu else "cpu",
        "parameters": 153_441,
        "initial_parameter_sha256": f"{repeat + 1:064x}",  # of the seed
        "dataset": f"synthetic-{DATA}",
        "floor_mse": FLOOR_MSE,
        "dataset_digest": f"{DATA:016x}",
        "train_samples": DATA,
        "test_samples": DATA // 4,
        "steps_per_epoch": per_epoch(known),
        "warmup_steps": warmup,
        "timer_mode": {"value": "light", "note": ""},
        "path": _path(known, way),
        "path_reason": "",
        "ranks_per_host": [len(_ranks(known, host)) for host in hosts],
        "shared_cores": False,
        "other_programs_cores": dict.fromkeys(hosts, 0.0),
        "ranks": ranks,
    }
    environment = {
        "cpu_model": "Imaginary EPYC 7702 64-Core Processor",
        "cores": known.site.cores,
        "memory_gb": 512.0,
        "os": "Linux 6.1 x86_64",
        "python": "3.11.9",
        "package": "0.1.0",
        "torch": "2.13.0",
        "horovod": "0.28.1" if backend == "horovod" else None,
        "mpi": "Open MPI 4.1.8",
        "load_1min": 0.1,
        "command": ["python", "-m", "horovod_study.train", "--config", f"cells/{key}.yaml", "--out", f"runs/{key}"],
    }
    return records.RunRecord(
        study=study,
        key=key,
        repeat=repeat,
        partition=partition,
        status="running",
        started=started.isoformat(),
        host=hosts[0],
        pid=4711,
        requested=requested,
        effective=effective,
        environment=environment,
    )
