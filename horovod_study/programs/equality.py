"""The rank program of `bench equality`: trains a few steps, alone or in parallel, and compares weight by weight.

    python -m horovod_study.programs.equality JOB.json

Alone (job "write"), it trains on whole global batches and keeps in files what the parallel runs must reproduce: initial
parameters, the gradients of the first steps, final parameters. In parallel, every rank trains on its share with the
trainer's own step, loader, optimiser and backend, compares itself with those files, and rank 0 answers for all.

Letters: N workers, B curves in a global batch, b_r of them on rank r, S steps, P parameters in all.
"""

import hashlib
import importlib.util
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from horovod_study.comm import Backend, Launch, builds, fail_together, gpus, open_backend
from horovod_study.comm.base import Optimizer
from horovod_study.comm.liveness import Liveness
from horovod_study.errors import BackendError
from horovod_study.measure.clock import LapClock
from horovod_study.programs.answer import Told, serve
from horovod_study.runtimes import RUNTIMES
from horovod_study.strain import dataset as data
from horovod_study.strain.loaders import open_loader
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, make_optimizer
from horovod_study.strain.options import StrainConfig, strain_config
from horovod_study.strain.trainer import train_step

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_WATCHED_STEPS = 10  # whose gradients are kept: all would fill the disk in a long proof

Trial = Mapping[str, Any]
"""One training run of S steps: `dtype`, `optimizer`, `batch` B of all workers together, `shards` (even: B/N curves on
every rank; uneven: ranks differ by one curve), `lr` of one worker before scaling, and `reference`, the name of the file
with its sequential counterpart below the job's folder."""


class BatchShares(data.Batches):
    """Rank r's part of each global batch when N does not divide B: the first ranks take one curve more.

    `shifted`: the last rank begins one curve too early and ends one too early, a mistake made on purpose.
    """

    def __init__(
        self, train_size: int, *, batch: int, rank: int, workers: int, seed: int, shifted: bool = False
    ) -> None:
        super().__init__(train_size, batch=batch, rank=0, workers=1, seed=seed)
        size, larger = divmod(batch, workers)
        start = rank * size + min(rank, larger)
        early = int(shifted and rank == workers - 1)
        self.part = slice(start - early, start + size + (rank < larger) - early)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the curve numbers of this worker's batches in order, shape (steps_per_epoch, b_r)."""
        return np.ascontiguousarray(super().epoch(epoch)[:, self.part])


class _Weighted(Arithmetic):
    """Multiplies the loss by the rank's share of the batch: N b_r / B, 1 where shards are even.

    Every rank's loss is the mean over its own curves. The mean of these means is the mean over the global batch only if
    each counts as its share.
    """

    def __init__(self, config: StrainConfig, device: torch.device, weight: float) -> None:
        super().__init__(config, device)
        self._weight = weight

    def backward(self, loss: torch.Tensor, weight: float = 1.0) -> None:
        super().backward(loss, weight * self._weight)


def flat(tensors: Iterable[torch.Tensor]) -> NDArray[np.float64]:
    """Return all elements of all tensors in order, shape (P,)."""
    return torch.cat([tensor.detach().flatten().cpu().double() for tensor in tensors]).numpy()


def distance(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[float, float]:
    """Return how far `ours` is from `theirs`, relative to theirs: by norms, and by the largest elements."""
    apart, norm = ours - theirs, np.linalg.norm
    sizes = ((float(norm(apart, order)), float(norm(theirs, order))) for order in (2, np.inf))
    by_norm, by_largest = (part / whole if whole else (float("inf") if part else 0.0) for part, whole in sizes)
    return by_norm, by_largest


def order_sha256(rows: NDArray[np.int64]) -> str:
    """Return the SHA-256 of the curve numbers of all global batches, shape (S, B), in their order."""
    return hashlib.sha256(np.ascontiguousarray(rows, dtype="<i8").tobytes()).hexdigest()


def _apart(run: SimpleNamespace, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the distances of two vectors (P,) for each of the model's tensors."""
    places = np.cumsum(run.sizes)[:-1]
    return [distance(*pair) for pair in zip(np.split(ours, places), np.split(theirs, places), strict=True)]


def _work(job: Mapping[str, Any], launch: Launch, on_progress: Told) -> Mapping[str, Any]:
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True  # or a GPU may sum in another order each time
    return (_write_references if job["write"] else _compare)(job, launch)


def _write_references(job: Mapping[str, Any], launch: Launch) -> dict[str, Any]:
    """Train every trial alone, write its file, and return what the files' names stand for, and the runtimes here."""
    config = strain_config(job["config"])
    backend = open_backend(config, launch)
    dataset = data.open_dataset(Path(config.dataset))
    references = []
    for trial in job["trials"]:
        truth = run = _train(config, trial, backend, dataset)
        if trial["dtype"] != "float64":
            truth = _train(replace(config, steps=1), {**trial, "dtype": "float64"}, backend, dataset)
        file = Path(job["folder"]) / trial["reference"]
        np.savez(file, start=run.start, end=run.end, gradients=run.gradients, rows=run.rows)
        rounding = max(each for each, _ in _apart(run, run.gradients[0], truth.gradients[0]))
        moved = [each for each, _ in _apart(run, run.end, run.start)]
        told = {"reference": trial["reference"], "order_sha256": order_sha256(run.rows), "rates": run.rates}
        told |= {"rounding": rounding if trial["dtype"] != "float64" else None}
        references.append({**told, "moved": dict(zip(run.names, moved, strict=True))})
    return {"references": references, "runtimes": _missing(), "gpus": gpus.visible()}


def _missing() -> dict[str, str | None]:
    """Return for each runtime why it cannot be used here, None where it can."""
    named, unloaded, built = builds.available(), "", list[str]()
    try:
        import horovod.torch as hvd
    except ImportError as error:
        unloaded = f"Horovod cannot be loaded ({error})"
    else:
        built = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

    def reason(library: str, transport: str) -> str | None:
        if transport == "nccl" and not torch.cuda.is_available():
            return "PyTorch sees no GPU"
        if library == "horovod" and transport not in (*named, *built):
            return unloaded or f"Horovod was built without {transport} (it has {', '.join(built)})"
        if library == "ddp" and not getattr(dist, f"is_{transport}_available")():
            return f"this PyTorch was built without {transport}"
        if library in ("mpi", "ps") and importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed"
        launcher = {"horovod": "horovodrun", "mpi": "mpirun", "ps": "mpirun"}.get(library)
        if launcher and shutil.which(launcher, path=search) is None:
            return f"the program {launcher} is neither beside {sys.executable} nor on PATH"
        return None

    return {each: reason(*each.partition("/")[::2]) for each in RUNTIMES}


def _compare(job: Mapping[str, Any], launch: Launch) -> dict[str, Any]:
    """Train every trial with every reduction in parallel and return the differences, on every rank."""
    start = Liveness(120.0, launch)
    cases = []
    for reduction in job["reductions"]:
        # The reduction is chosen when a backend is made. A second one is fine for Horovod and MPI, which stay as they
        # are; torch's process group cannot be made twice over one store, so that DDP gets one reduction for a launch.
        config = strain_config({**job["config"], "reduction": reduction})
        backend = open_backend(config, launch)
        with fail_together(backend):
            dataset = data.open_dataset(Path(config.dataset))
        start.close()
        for trial in job["trials"]:
            run = _train(config, trial, backend, dataset, job["break"])
            if run.reduction != reduction and reduction != "auto":
                raise BackendError(
                    f"reduction {reduction} was asked for, but backend {backend.name} averaged with {run.reduction}; "
                    f"use --reduction {run.reduction}"
                )
            cases.append(_difference(Path(job["folder"]), trial, run, backend))
    backend.barrier()
    backend.close()
    return {"cases": cases}


def _difference(folder: Path, trial: Trial, run: SimpleNamespace, backend: Backend) -> dict[str, Any]:
    """Return how the parallel run differs from its sequential counterpart, the worst rank counting; collective."""
    with np.load(folder / trial["reference"], allow_pickle=False) as file:
        start, end, gradients, theirs = (file[name] for name in ("start", "end", "gradients", "rows"))
    apart = [_apart(run, *pair) for pair in ((run.end, end), *zip(run.gradients, gradients, strict=True))]
    first, known = run.gradients[0], gradients[0]
    mine = {"apart": apart, "factor": float(first @ known / (known @ known)), "rows": run.rows.tolist()}
    mine |= {"start": float(np.abs(run.start - start).max()), "end": hashlib.sha256(run.end.tobytes()).hexdigest()}
    everybody = backend.gather({**mine, "rates": run.rates})
    worst = np.max([rank["apart"] for rank in everybody], axis=0)  # (1 + gradient steps, tensors, 2)
    rows = np.concatenate([np.asarray(rank["rows"]) for rank in everybody], axis=1)
    factors = [rank["factor"] for rank in everybody]
    return {
        "reduction": run.reduction,
        "transport": backend.transport,
        **{name: trial[name] for name in ("dtype", "shards", "batch", "optimizer", "reference")},
        "order_sha256": order_sha256(rows),
        "order_difference": _order_difference(rows, theirs),
        "rates": [rank["rates"] for rank in everybody],
        "starts": [rank["start"] for rank in everybody],
        "factor": max(factors, key=lambda factor: abs(factor - 1)),
        "ends_alike": [rank["end"] == everybody[0]["end"] for rank in everybody],
        "tensors": [
            {
                "name": name,
                "relative_error": float(worst[0, place, 0]),
                "max_error": float(worst[0, place, 1]),
                "gradient_error": float(worst[1, place, 0]),
                "gradient_error_later": float(worst[1:, place, 0].max()),
            }
            for place, name in enumerate(run.names)
        ],
    }


def _order_difference(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> str:
    """Say where the global batches (S, B) first differ, '' where they do not."""
    if ours.shape != theirs.shape:
        return f"{ours.shape[0]} steps of {ours.shape[1]} curves instead of {theirs.shape[0]} of {theirs.shape[1]}"
    for step in np.flatnonzero((ours != theirs).any(axis=1)).tolist():
        mine, known = {*ours[step].tolist()}, {*theirs[step].tolist()}
        if not known - mine:
            return f"in step {step + 1} the same curves in another order"
        twice = ours.shape[1] - len(mine)
        return f"in step {step + 1} {len(known - mine)} of {theirs.shape[1]} curves missing, {twice} taken twice"
    return ""


def _train(
    config: StrainConfig, trial: Trial, backend: Backend, dataset: data.Dataset, wrong: str | None = None
) -> SimpleNamespace:
    """Train `trial` for S steps with the trainer's own step and return what this rank saw, vectors in float64.

    Ranks other than 0 begin with parameters of their own: making all equal to rank 0 is a duty of the backend, and a
    part of what is proven. `wrong` on purpose: `sum`, gradients are summed and not averaged; `shard`, one rank's curves
    are shifted by one; `start`, one rank begins with other parameters.
    """
    rank, workers, dtype = backend.rank, backend.workers, DTYPES[trial["dtype"]]
    device = gpus.take(config.device, backend)
    who: dict[str, Any] = {"rank": rank, "workers": workers, "seed": config.seed}
    with fail_together(backend) if workers > 1 else nullcontext():
        if trial["shards"] == "even" and wrong != "shard":
            batches = data.Batches(dataset.train_size, batch=trial["batch"] // workers, **who)
        else:
            batches = BatchShares(dataset.train_size, batch=trial["batch"], shifted=wrong == "shard", **who)
    local = batches.epoch(0).shape[1]
    config = replace(config, optimizer=trial["optimizer"], lr=trial["lr"], batch=local)
    torch.manual_seed(config.seed + rank)
    bare_model = StressCNN(input_scaling=config.input_scaling).to(device, dtype)
    bare_optimizer, _ = make_optimizer(config, bare_model.parameters(), workers=workers)
    model, optimizer = backend.bind(bare_model, bare_optimizer)
    if wrong == "start" and rank == workers - 1:
        with torch.no_grad():
            bare_model.fc1.weight.mul_(1.01)
    start = flat(bare_model.parameters())

    averaged: list[NDArray[np.float64]] = []  # each (P,), of the first steps

    def synchronize(optimizer: Optimizer) -> None:
        backend.synchronize(optimizer)
        gradients = [parameter.grad for parameter in bare_model.parameters() if parameter.grad is not None]
        for gradient in gradients if wrong == "sum" else ():
            gradient.mul_(float(workers))
        if len(averaged) < _WATCHED_STEPS:
            averaged.append(flat(gradients))

    watched: Any = SimpleNamespace(
        zero_grad=backend.zero_grad, synchronize=synchronize, step=backend.step, last_gradient=None
    )
    arithmetic = _Weighted(config, device, workers * local / trial["batch"])
    arithmetic.bind(bare_model, optimizer, backend)
    if arithmetic.kernels != config.kernels:
        raise BackendError(f"kernels {config.kernels} cannot be used here, and nothing would be proven of them")
    loader = open_loader(config, dataset, batches, device)
    clock = LapClock()
    clock.start()
    rows, rates = [], []
    backend.barrier()
    endless = (
        (mine, *batch)
        for epoch in itertools.count()
        for mine, batch in zip(batches.epoch(epoch), loader.epoch(epoch), strict=True)
    )
    for step, (mine, curves, targets) in enumerate(itertools.islice(endless, config.steps)):
        rows.append(mine)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        clock.begin()
        clock.lap("data")
        train_step(model, optimizer, curves.to(dtype), targets.to(dtype), watched, clock, arithmetic)
        if step % 100 == 99:
            clock.drain()
    loader.close()
    return SimpleNamespace(
        start=start,  # (P,)
        end=flat(bare_model.parameters()),  # (P,)
        gradients=np.stack(averaged),  # (min(S, 10), P), averaged over the workers
        rows=np.stack(rows),  # (S, b_r): curve numbers
        rates=rates,  # (S,)
        reduction=backend.reduction,
        names=[name for name, _ in bare_model.named_parameters()],
        sizes=[parameter.numel() for parameter in bare_model.parameters()],
    )


if __name__ == "__main__":
    serve(_work)
