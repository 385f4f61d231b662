"""What is trained, on each rank: data set, network, optimiser, arithmetic, and what the record says of them.

Letters: B curves per worker and step, C = 3 channels, L = 201 points.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from horovod_study.comm import Backend, fail_together, gpus, require_parity, traffic
from horovod_study.comm.liveness import PATIENCE, Liveness
from horovod_study.config.run import misplaced
from horovod_study.errors import BackendError, DataError, StudyError
from horovod_study.measure.clock import now
from horovod_study.measure.environment import affinity
from horovod_study.measure.recorder import Recorder
from horovod_study.recording.rank import facts
from horovod_study.recording.session import Session, settle
from horovod_study.text.progress import say
from horovod_study.workload import dataset as data
from horovod_study.workload.material import CHANNELS, POINTS
from horovod_study.workload.model import StressCNN
from horovod_study.workload.optimizer import Arithmetic, accelerate, learning_rate, make_optimizer
from horovod_study.workload.options import StrainConfig, last_step, parse_widths
from horovod_study.workload.probes import profiling


class TrainingJob:
    """What is trained, on this rank: the data set, the network and what updates it, the same on every rank."""

    def __init__(self, config: StrainConfig, backend: Backend, session: Session, liveness: Liveness) -> None:
        """Make it. Collective. Raises StudyError, on all ranks, for what cannot be trained as it was asked for."""
        self.config, self.backend = config, backend
        if wrong := misplaced(config, session.hosts):  # all ranks know all hosts, so all of them end here
            raise BackendError(wrong)
        torch.set_num_threads(config.threads)
        self.device = device = gpus.take(config.device, backend)
        self.arithmetic = Arithmetic(config, device)
        with fail_together(backend):
            liveness.patience = math.inf
            if session.local_rank == 0:  # the first rank of each host
                threads, size = len(affinity()), data.parse_size(config.dataset)
                path = data.path_of(config.dataset, seed=config.data_seed)
                if size is not None and not path.exists():
                    say(f"generating {size:,} curves (seed {config.data_seed}) into {path}, once")
                    began = now()
                    data.ensure(config.dataset, seed=config.data_seed, threads=threads)
                    say(f"generated in {now() - began:.1f} s")
        with fail_together(backend):
            liveness.patience = PATIENCE
            folder = backend.gather(str(data.path_of(config.dataset, seed=config.data_seed)))[0]
            self.dataset = data.open_dataset(Path(folder))
            self.batches = data.Batches(
                self.dataset.train_size,
                batch=config.batch,
                rank=backend.rank,
                workers=backend.workers,
                seed=config.seed,
            )
            self.per_epoch = self.batches.steps_per_epoch
            self.last_step = last_step(config, self.per_epoch)  # complains before anything is written
        require_parity(backend, {"data set": self.dataset.digest(), "steps per epoch": self.per_epoch})
        torch.manual_seed(config.seed)
        self.bare_model = StressCNN(  # the network itself; `model` is what is called in training
            widths=parse_widths(config.widths), input_scaling=config.input_scaling, memory_format=config.memory_format
        ).to(device)
        optimizer, self.optimizer_text = make_optimizer(config, self.bare_model.parameters(), workers=backend.workers)
        self.initial_sha256 = facts.digest([self.bare_model])
        require_parity(backend, {"initial parameters": self.initial_sha256})
        with fail_together(backend):
            profiling.require_possible(config, backend, device)
            called = accelerate(self.bare_model, config, device)
        self.model, self.optimizer = backend.bind(called, optimizer)
        self.arithmetic.bind(self.bare_model, self.optimizer, backend)

    @property
    def parts(self) -> dict[str, Any]:
        """Return by name what makes a step."""
        names = ("backend", "model", "bare_model", "optimizer", "arithmetic", "device")
        return {name: getattr(self, name) for name in names}

    def settings(self) -> dict[str, Any]:
        """Return what is recorded of the training itself."""
        config, dataset = self.config, self.dataset
        captured = "captured" if self.device.type == "cuda" else "replayed on the host"
        timed: dict[str, Any] = {}
        if config.cuda_graphs and config.timer_mode != "off":  # how steps in CUDA graphs are really timed
            note = "compute is what one CUDA graph holds, into which nobody looks; strict tells forward from backward"
            if config.timer_mode == "strict":
                note = "forward and backward are CUDA graphs of their own, which they are in no other mode"
            timed = {"timer_mode": {"value": config.timer_mode, "note": note}}
        as_asked = ("batch", "schedule", "precision", "widths", "input_scaling", "memory_format", "loader")
        return {
            **{name: getattr(config, name) for name in as_asked},
            "kernels": self.arithmetic.kernels,
            **timed,
            "global_batch": config.batch * self.backend.workers,
            "optimizer": self.optimizer_text,
            "graphs": captured if config.cuda_graphs else "no",
            "parameters": facts.count([self.bare_model]),
            "initial_parameter_sha256": self.initial_sha256,
            "dataset": str(dataset.path),
            "dataset_digest": dataset.digest(),
            "floor_mse": dataset.floor["mse"] if dataset.floor else None,
            "train_samples": dataset.train_size,
            "test_samples": dataset.test_size,
            "steps_per_epoch": self.per_epoch,
        }


def describe(job: TrainingJob, session: Session, nccl: traffic.Capture) -> dict[str, Any]:
    """Return what really runs, and where gradients pass, for the record. Collective."""
    config, backend, optimizer = job.config, job.backend, job.optimizer
    taken = traffic.watch(
        backend,
        _averaging(job),
        hosts=session.hosts,
        payload_bytes=sum(each.numel() * each.element_size() for each in job.bare_model.parameters()),
        servers=config.ps_servers if backend.name == "ps" else None,
    )
    if backend.transport == "nccl" and backend.workers > 1:
        taken = traffic.told_by_nccl(taken, backend.gather(nccl.read()), session.hosts)
    nccl.close()
    if config.compile:  # compilers are started as programs of their own, and are no other load
        session.watch_load()
    session.describe_ranks(
        job.device, lr=learning_rate(optimizer), settings=backend.settings, path=taken["ranks"][backend.rank]
    )
    require_parity(backend, {"learning rate": learning_rate(optimizer)})
    return {
        **session.effective,
        **job.settings(),
        **{name: getattr(backend, name) for name in ("transport", "reduction", "settings")},
        "backend": backend.name,
        "path": taken["path"],
        "path_reason": taken["reason"],
        "path_evidence": taken["evidence"],
    }


def greeting(job: TrainingJob, effective: Mapping[str, Any]) -> str:
    """Return one line on what begins."""
    backend, path, workers = job.backend, effective["path"], job.backend.workers
    return (
        f"{workers} worker{'s' * (workers > 1)} ({backend.name}"
        + (f" over {backend.transport}, {backend.reduction} reduction" if workers > 1 else "")
        + (f", through {' and '.join(path)}" if path else "")
        + f"), batch {job.config.batch} each, {job.dataset.train_size:,} training curves, "
        + f"{effective['parameters']:,} parameters"
    )


def name_broken(job: TrainingJob, rows: Recorder) -> None:
    """Say on which rank and in which step a loss or gradient was not finite first; steps count from 0, as in the rows.

    Collective. Returns when the training diverged, on all ranks at once or nearly so: such a run goes on, and its
    error is recorded as no number. Raises StudyError, on all ranks, when a curve is not finite, or when one rank was
    broken while the others were fine.
    """
    backend, dataset, batches = job.backend, job.dataset, job.batches
    first = min(step for step in backend.gather(rows.broken_step) if step is not None)
    mine = batches.epoch(first // batches.steps_per_epoch)[first % batches.steps_per_epoch]  # (B,)
    bad = mine[~(np.isfinite(dataset.curves[mine]).all(axis=(1, 2)) & np.isfinite(dataset.targets[mine]).all(axis=1))]
    ranks = backend.gather(
        (os.uname().nodename, *rows.state_at(first), rows.broken_step == first, [int(row) for row in bad[:1]])
    )
    broken = [rank for rank, (_, _, _, _, is_first, _) in enumerate(ranks) if is_first]
    others = [state for rank, state in enumerate(ranks) if rank not in broken]
    faulty = [rank for rank in broken if ranks[rank][5]]
    rank = (faulty or broken)[0]
    host, loss, _, lowest, _, curve = ranks[rank]
    what = f"its loss was {loss:g}" if not math.isfinite(loss) else f"its gradients were not finite (its loss {loss:g})"
    where = f"rank {rank} on {host}: {what} at step {first:,}"
    # A loss that has grown so many times was diverging, whichever rank had the first one that is not a number.
    exploded = any(loss > 1000.0 * (1.0 if math.isnan(lowest) else lowest) for _, loss, _, lowest, _, _ in others)
    if faulty or (others and not exploded):
        sound = f"while {'the other rank was' if len(others) == 1 else 'the others were'} sound"
        curves = f"because curve {(curve or [0])[0]:,} of {dataset.path} is not finite"
        again = "make or import that data set again" if faulty else "look at its batch and its device, or lower --lr"
        why = curves if faulty else f"{sound} (loss {others[0][1]:g})"
        raise (DataError if faulty else StudyError)(f"{where}, {why}; {again}")
    if backend.rank == 0:
        who = f"rank{'s' * (len(broken) > 1)} {', '.join(map(str, broken))} first" if others else "on all ranks at once"
        say(
            f"warning: from step {first:,} on the loss is not a number"
            + (f" ({who})" if backend.workers > 1 else "")
            + (f", after {lowest:g} at best" if math.isfinite(lowest) else "")
            + ": the training diverged; lower --lr, or raise --lr-warmup-steps"
        )


def _averaging(job: TrainingJob) -> Callable[[], None]:
    """Return what averages gradients once over the way of training, hooks included, and leaves no trace of it."""
    size = job.config.batch if job.config.compile else 1  # what was compiled takes batches of one size only
    kind = next(job.model.parameters()).dtype
    curves = torch.zeros(size, CHANNELS, POINTS, device=job.device, dtype=kind)

    def average() -> None:
        job.backend.zero_grad(job.optimizer)
        with job.arithmetic.autocast():
            loss = job.model(curves).sum()
        loss.backward()
        job.backend.synchronize(job.optimizer)
        job.backend.zero_grad(job.optimizer)
        settle(job.device)

    return average
