"""Train the strain-stress CNN on one worker or on many, and record every step.

    python -m horovod_study.train                                            one worker, plain PyTorch
    horovodrun -np 2 .venv/bin/python -m horovod_study.train                 Horovod, over MPI
    horovodrun --gloo -np 2 .venv/bin/python -m horovod_study.train          Horovod, over Gloo
    mpirun -np 2 .venv/bin/python -m horovod_study.train                     Horovod, or --backend mpi
    torchrun --nproc-per-node 2 -m horovod_study.train                       torch DistributedDataParallel
    ... -m horovod_study.train --resume RUN_DIR                              any of these, continued from a checkpoint

Exit codes: 0 done, 2 wrong use or bad input, 75 stopped by SIGTERM or SIGUSR1 with a checkpoint (start it again with
--resume), 130 after Ctrl-C, 143 after SIGTERM or SIGUSR1 without a checkpoint.

Letters: B curves per worker and step, C = 3 channels, L = 201 points, P = 2 targets.
"""

from horovod_study import limits  # isort: split

if __name__ == "__main__":
    limits.install()  # before PyTorch, which may not find room

import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from horovod_study import alive, lease, records, requirements
from horovod_study.comm import Backend, Launch, agreed, detect, nccl_log, open_backend, require_parity
from horovod_study.comm.liveness import PATIENCE, Liveness, LostPeer
from horovod_study.comm.settings_file import SettingsFile, nodes_of, read_settings
from horovod_study.comm.stop import STOPPED_EXIT_CODE, Stopped, StopRequest, Terminated, signal_name
from horovod_study.comm.watchdog import StartWatchdog
from horovod_study.config import BUDGETS, LAPS, ORDINARY_LAPS, RunConfig, misplaced, parse_widths, run_config
from horovod_study.documents import load_yaml
from horovod_study.errors import BackendError, ConfigError, DataError, RecordError, StudyError
from horovod_study.measure import (
    ablation,
    energy,
    environment,
    evidence,
    profiling,
    ranges,
    steady,
    synchronisation,
    system,
    timeline,
    traffic,
)
from horovod_study.measure.clock import DeviceStamps, LapClock, Unstamped, now, sleep, utc_now, utc_stamp
from horovod_study.measure.recorder import Recorder
from horovod_study.measure.scratch import Scratch
from horovod_study.options import Parser, add_train_options, run_values
from horovod_study.progress import Progress, say
from horovod_study.text.tables import table_of, to_lines
from horovod_study.workload import checkpoint
from horovod_study.workload import dataset as data
from horovod_study.workload.allocator import keep_freed_memory
from horovod_study.workload.evaluation import compared_to_floor, evaluate
from horovod_study.workload.graphs import CapturedStep
from horovod_study.workload.loaders import feed, open_loader, resident
from horovod_study.workload.material import CHANNELS, POINTS
from horovod_study.workload.model import StressCNN, parameter_count, parameter_sha256
from horovod_study.workload.optimizer import (
    Arithmetic,
    accelerate,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from horovod_study.workload.resume import Resumption, notes, plan_resume, require_same_run
from horovod_study.workload.schedule import lr_factor, scaled_lr

_STOP_S = 1e300
_EXPLODED = 1000.0
"""A loss that has grown so many times was diverging, whichever rank had the first one that is no number."""
DRAIN_STEPS = 512
DRAIN_S = 2.0
"""After so many steps or so many seconds, whatever comes first, laps are read and written: what a killed run loses.

Reading 512 steps takes a few milliseconds. The host of a GPU is ahead of it by what the driver's queue holds, about
1,000 launches and stamps, some 300 captured steps: 30 ms of work at 0.1 ms a step, so that the device has enough to do
meanwhile. Both together are far less than recorder.MOST_PENDING.
"""


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    curves: torch.Tensor,
    targets: torch.Tensor,
    backend: Backend,
    clock: LapClock,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """Make one update from one local batch, curves (B, C, L) and targets (B, P); return the local loss, shape ()."""
    backend.zero_grad(optimizer)
    with arithmetic.autocast():
        loss = F.mse_loss(model(curves).to(targets.dtype), targets)
    clock.lap("forward")
    watch = backend.last_gradient if clock.takes_stamps else None
    if watch is not None:
        watch.arm(clock.mark)
    arithmetic.backward(loss)
    # Where backward waits for the other ranks before it returns, that wait is the begin of sync.
    clock.lap("backward", at=None if watch is None else watch.taken())
    backend.synchronize(optimizer)  # the gradients are averaged here, or finished here if hooks began in backward
    clock.lap("sync")
    arithmetic.step(optimizer, backend)
    clock.lap("update")
    return loss.detach()


class _Holding:
    """The claim on the run, which rank 0 holds while the ranks train."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._held = ExitStack()

    def take(self, directory: Path, backend: Backend, resumption: Resumption | None) -> None:
        """Claim the run before anything is written, after moving aside an earlier one if that is wanted. Collective.

        Raises Held, on all ranks, where somebody else trains it, and RecordError where he has gone on with it.
        """
        with agreed(backend):
            if backend.rank == 0:
                if self._again and resumption is None and records.is_over(directory):
                    say(f"the earlier run is kept in {lease.move_run(directory, directory.parent / lease.ATTEMPTS)}")
                if resumption is None and lease.holder_of_run(directory) is None:
                    records.require_no_run(directory, again="--again")  # before a claim is left in it
                self._held.callback(lease.hold_run(directory).give_back)
                if resumption and records.read_run(directory) != resumption.record:
                    raise RecordError(f"{directory}: somebody else has gone on with the run meanwhile; resume it again")

    def close(self) -> None:
        """Give it back."""
        self._held.close()


def run(
    config: RunConfig,
    *,
    out: Path | None,
    launch: Launch,
    resumption: Resumption | None = None,
    stop: StopRequest | None = None,
    settings_file: Mapping[str, Any] | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Train as `config` says and record the run in `out`; return what `--json` prints, on every rank.

    With `resumption`, continue that run in its directory `out`. `settings_file` is what the record says of the file
    that settings came from; `again` moves a run that is in `out` already aside. Collective: every rank of the launch
    must call it.
    Raises StudyError, on all ranks, for what the user can mend, and Stopped when `stop` was requested.
    """
    keep_freed_memory()
    watchdog = StartWatchdog(config.start_timeout_s, launch)
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    nccl = nccl_log.Capture(wanted=on_gpu and config.transport in ("auto", "nccl") and launch.workers > 1)
    try:
        backend = open_backend(config, launch)
        stop, holding = stop or StopRequest(), _Holding(again=again)
        result = _run(config, out, launch, backend, watchdog, resumption, stop, nccl, settings_file, holding)
    finally:
        watchdog.cancel()
        nccl.close()
    backend.close()  # not after a failure: leaving is collective, and the other ranks may be gone
    return result


def _run(
    config: RunConfig,
    out: Path | None,
    launch: Launch,
    backend: Backend,
    watchdog: StartWatchdog,
    resumption: Resumption | None,
    stop: StopRequest,
    nccl: nccl_log.Capture,
    settings_file: Mapping[str, Any] | None,
    holding: _Holding,
) -> dict[str, Any]:
    # ------------------------------------------------------------------ the same start on every rank
    places = backend.gather((os.uname().nodename, environment.affinity()))
    require_parity(
        backend,
        {
            **{name: value for name, value in config.to_dict().items() if name not in ("threads", "start_timeout_s")},
            "backend": backend.name,
            "resume": resumption is not None,
            "package version": environment.describe_package(),
        },
    )
    watchdog.cancel()  # everybody has arrived; what follows fails together
    liveness = Liveness(backend, config.stall_timeout_s)
    host = places[backend.rank][0]
    first_here = [each for each, _ in places].index(host) == backend.rank  # the first rank of each host
    sampler = system.Sampler(host) if config.system_interval_s and first_here else None
    try:
        result = _run_watched(
            config, out, launch, backend, liveness, places, resumption, stop, nccl, settings_file, sampler, holding
        )
    except BaseException as error:
        explained = liveness.explain(error)
        if not isinstance(explained, LostPeer | Terminated):
            liveness.end()
        if explained is not error:
            raise explained from None
        raise
    finally:
        holding.close()
        if sampler is not None:
            sampler.close()
    liveness.close()
    return result


def _run_watched(
    config: RunConfig,
    out: Path | None,
    launch: Launch,
    backend: Backend,
    liveness: Liveness,
    places: list[tuple[str, list[int]]],
    resumption: Resumption | None,
    stop: StopRequest,
    nccl: nccl_log.Capture,
    settings_file: Mapping[str, Any] | None,
    sampler: system.Sampler | None,
    holding: _Holding,
) -> dict[str, Any]:
    rank, workers, leads = backend.rank, backend.workers, backend.rank == 0
    hosts = [host for host, _ in places]
    if wrong := misplaced(config, hosts):  # all ranks know all hosts, so all of them end here
        raise BackendError(wrong)
    load = evidence.OtherLoad(
        sorted({core for host, cores in places if host == hosts[rank] for core in cores}),
        beside=None if sampler is None else sampler.pid,
    )
    torch.set_num_threads(config.threads)
    local_rank = hosts[:rank].count(hosts[rank])
    device = _device(config, local_rank=local_rank)
    arithmetic = Arithmetic(config, device)

    with agreed(backend):
        if hosts.index(hosts[rank]) == rank:  # the first rank of each host
            with liveness.patient(math.inf):
                _ensure_dataset(config, threads=len(places[rank][1]))
    with agreed(backend):
        dataset = data.open_dataset(Path(backend.gather(str(data.path_of(config.dataset, seed=config.data_seed)))[0]))
        batches = data.Batches(dataset.train_size, batch=config.batch, rank=rank, workers=workers, seed=config.seed)
        _last_step(config, batches.steps_per_epoch)  # for its complaint, before anything is written
    require_parity(backend, {"data set": dataset.digest(), "steps per epoch": batches.steps_per_epoch})

    torch.manual_seed(config.seed)
    bare_model = StressCNN(
        widths=parse_widths(config.widths), input_scaling=config.input_scaling, memory_format=config.memory_format
    ).to(device)
    bare_optimizer, optimizer_text = make_optimizer(config, bare_model.parameters(), workers=workers)
    parameters, initial_sha256 = parameter_count(bare_model), parameter_sha256(bare_model)
    require_parity(backend, {"initial parameters": initial_sha256})
    with agreed(backend):
        profiling.require_possible(config, backend, device)
        called = accelerate(bare_model, config, device)
    model, optimizer = backend.bind(called, bare_optimizer)

    # ------------------------------------------------------------------ what really runs, and where it passes
    taken = traffic.watch(
        backend,
        _averaging(config, backend, model, optimizer, arithmetic, device),
        hosts=hosts,
        payload_bytes=sum(each.numel() * each.element_size() for each in bare_model.parameters()),
        servers=config.ps_servers if backend.name == "ps" else None,
    )
    if backend.transport == "nccl" and workers > 1:
        taken = traffic.told_by_nccl(taken, backend.gather(nccl.read()), hosts)
    nccl.close()
    if config.compile:  # compilers are started as programs of their own, and are no other load
        load = evidence.OtherLoad(load.cores, beside=load.beside)
    ranks = backend.gather(
        {
            **evidence.describe_rank(
                host=hosts[rank],
                local_rank=local_rank,
                cores=places[rank][1],
                device=device,
                lr=learning_rate(optimizer),
                settings=backend.settings,
            ),
            "path": taken["ranks"][rank],
        }
    )
    evidence.require_equal_rates(ranks)
    busy = evidence.other_cores(backend.gather(load.sample(at_least_s=0.2 if workers > 1 else 0.0)), ranks)
    doubts = [text for text in (evidence.crowded(ranks), evidence.disturbed(busy, ranks)) if text]

    # ------------------------------------------------------------------ the record, before the first step
    directory = Path(backend.gather(str((out or _default_out(config, backend)).absolute()))[0])
    holding.take(directory, backend, resumption)
    resumed = _read_checkpoint(directory, backend) if resumption else None
    record = records.RunRecord(
        study=config.study,
        key=directory.name,
        repeat=config.repeat,
        partition=config.partition,
        status="running",
        started=resumption.record.started if resumption else utc_now(),
        attempts=resumption.record.attempts if resumption else (),
        host=hosts[0],
        pid=os.getpid(),
        process=alive.identity(),
        requested={**config.to_dict(), "workers": launch.workers},
        effective={
            "backend": backend.name,
            "transport": backend.transport,
            "reduction": backend.reduction,
            "launcher": launch.launcher,
            "settings": backend.settings,
            "settings_file": resumption.record.effective.get("settings_file") if resumption else settings_file,
            "workers": workers,
            "nodes": len(set(hosts)),
            "batch": config.batch,
            "global_batch": config.batch * workers,
            "lr": learning_rate(optimizer),
            "optimizer": optimizer_text,
            "schedule": config.schedule,
            "precision": config.precision,
            "widths": config.widths,
            "input_scaling": config.input_scaling,
            "memory_format": config.memory_format,
            "graphs": _graphs(config, device),
            "kernels": config.kernels,
            "loader": config.loader,
            "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
            "parameters": parameters,
            "initial_parameter_sha256": initial_sha256,
            "dataset": str(dataset.path),
            "dataset_digest": dataset.digest(),
            "floor_mse": dataset.floor["mse"] if dataset.floor else None,
            "train_samples": dataset.train_size,
            "test_samples": dataset.test_size,
            "steps_per_epoch": batches.steps_per_epoch,
            "warmup_steps": config.warmup_steps,
            "timer_mode": _timer_mode(config, device),
            "path": taken["path"],
            "path_reason": taken["reason"],
            "path_evidence": taken["evidence"],
            "ranks_per_host": evidence.ranks_per_host(ranks),
            "shared_cores": evidence.crowded(ranks) is not None,
            "other_programs_cores": busy,
            "ranks": ranks,
        },
        environment=environment.describe(),
    )
    with agreed(backend):
        if resumption and resumed and leads:
            require_same_run(directory, resumption.record, record.effective)
            record = records.resume_run(directory, record, from_step=resumed.step, began=utc_now())
            checkpoint.set_aside_newer(directory, resumed.step)
            records.cut_epochs(directory, resumed.progress["evaluated"])
        elif leads:
            records.create_run(directory, record, again="--again")
    liveness.fail = lambda reason: _mark_failed(directory, reason)
    with agreed(backend):
        writer = records.StepWriter(directory, rank, resume_at=resumed.step if resumed else None)
    if leads:
        say(
            f"{workers} worker{'s' * (workers > 1)} ({backend.name}"
            + (f" over {backend.transport}, {backend.reduction} reduction" if workers > 1 else "")
            + (f", through {' and '.join(taken['path'])}" if taken["path"] else "")
            + f"), batch {config.batch} each, {dataset.train_size:,} training curves, {parameters:,} parameters"
        )
        if resumption and resumed:
            say(f"resumed after step {resumed.step:,} with {directory / checkpoint.name_of(resumed.step)}")
            for note in notes(resumption, record.environment, record.effective):
                say(note)
        for doubt in doubts:
            say(f"warning: {doubt}")

    keeper = checkpoint.Keeper(config, directory, backend, dataset.target_bounds)
    if sampler is not None:
        sampler.watch_ranks(directory, ranks, interval_s=config.system_interval_s, resumed=resumed is not None)
    try:
        _require(config, record.effective, backend.gather(record.environment)[0])
        result = _train(
            config, backend, dataset, batches, model, bare_model, optimizer, arithmetic, device, directory, writer,
            keeper, resumed, stop, liveness, sampler,
        )  # fmt: skip
        writer.close()
    except Stopped as error:
        writer.close()
        if leads:
            records.finish_run(
                directory, record, status="stopped", finished=utc_now(), totals=error.totals, reason=str(error)
            )
        backend.barrier()
        raise
    except BaseException as error:
        explained = liveness.explain(error)
        with suppress(RecordError):  # a full disk may be the error itself, and is the one to tell
            writer.close()
        if isinstance(explained, LostPeer):
            if explained.speaks:
                _mark_failed(directory, str(explained))
            raise explained from None
        if leads:
            reason = str(error) or type(error).__name__
            with suppress(RecordError):
                records.finish_run(directory, record, status="failed", finished=utc_now(), totals={}, reason=reason)
        raise
    if leads:
        records.finish_run(directory, record, status="done", finished=utc_now(), totals=result)
    backend.barrier()
    return _printed(directory, record.effective, result)


def _averaging(
    config: RunConfig,
    backend: Backend,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    arithmetic: Arithmetic,
    device: torch.device,
) -> Callable[[], None]:
    """Return what averages gradients once over the way of training, hooks included, and leaves no trace of it."""
    size = config.batch if config.compile else 1  # what was compiled takes batches of one size only
    curves = torch.zeros(size, CHANNELS, POINTS, device=device, dtype=next(model.parameters()).dtype)

    def average() -> None:
        backend.zero_grad(optimizer)
        with arithmetic.autocast():
            loss = model(curves).sum()
        loss.backward()
        backend.synchronize(optimizer)
        backend.zero_grad(optimizer)
        _wait_for_device(device)

    return average


def _require(config: RunConfig, effective: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise BackendError, on all ranks, if the run is not what `--require` asks for."""
    if config.require is None:
        return
    unmet = requirements.unmet(
        requirements.parse(config.require),
        asked=requirements.asked_for(config, lr=scaled_lr(config, effective["workers"])),
        effective=effective,
        environment=found,
    )
    if unmet:
        raise BackendError(f"{'; '.join(unmet)}; start the run as required, or change --require")


def _mark_failed(directory: Path, reason: str) -> None:
    """Write why the run has failed into its record, from any rank that sees it."""
    with suppress(RecordError):
        record = records.read_run(directory)
        if record.status == "running":
            records.finish_run(directory, record, status="failed", finished=utc_now(), totals={}, reason=reason)


def _read_checkpoint(directory: Path, backend: Backend) -> checkpoint.Checkpoint:
    """Return the newest intact checkpoint, read by rank 0 alone: the hosts of the others may not see the file."""
    content = b""
    with agreed(backend):
        if backend.rank == 0:
            content = checkpoint.read_newest(directory)
    found = checkpoint.decode(backend.gather(content)[0], str(directory))
    lacking = [name for name in checkpoint.PROGRESS if name not in found.progress]
    if lacking:
        raise RecordError(
            f"{directory}: its checkpoint lacks {lacking[0]}, so it is of no training; start the run anew"
        )
    return found


def _printed(directory: Path, effective: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--json` prints of a finished run, from its record."""
    return {
        "run_dir": str(directory),
        **{
            name: effective[name]
            for name in ("backend", "transport", "reduction", "workers", "nodes", "batch", "parameters")
        },
        "path": effective.get("path"),
        "samples_per_s": result["samples_per_s"],
        "step_ms_median": _ms(result["step_s_median"]),
        "step_ms_p90": _ms(result["step_s_p90"]),
        "sync_ms_median": _ms(result["lap_medians_s"]["sync"]),
        "laps_ms": {name: _ms(value) for name, value in result["lap_medians_s"].items()},
        "laps_share": {
            name: None if result[f"{name}_s"] is None else result[f"{name}_s"] / result["step_s"]
            for name in (*LAPS, "residual")
        },
        **{name: result[name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "steps")},
        "floor_mse": effective["floor_mse"],
        "floor_text": compared_to_floor(result["test_mse"], effective["floor_mse"], effective["test_samples"]),
        "steady": result.get("steady"),
        **{name: result[name] for name in ("target_reached", "train_s", "wall_s")},
        **{name: result[name] for name in ("checkpoints", "checkpoint_s", "checkpoint_bytes")},
        "rows_lost": result.get("rows_lost"),
        **{name: result[name] for name in ("window_s", "rss_mb_max", "pss_mb_max", "parameter_sha256")},
    }


def _train(
    config: RunConfig,
    backend: Backend,
    dataset: data.Dataset,
    batches: data.Batches,
    model: nn.Module,
    bare_model: StressCNN,
    optimizer: torch.optim.Optimizer,
    arithmetic: Arithmetic,
    device: torch.device,
    directory: Path,
    writer: records.StepWriter,
    keeper: checkpoint.Keeper,
    resumed: checkpoint.Checkpoint | None,
    stop: StopRequest,
    liveness: Liveness,
    sampler: system.Sampler | None,
) -> dict[str, Any]:
    """Train to the end of the budget or to the target; return the totals of the timed window.

    Raises Stopped, on all ranks, when any of them was asked to stop.
    """
    workers, leads = backend.workers, backend.rank == 0
    per_epoch = batches.steps_per_epoch
    last_step = _last_step(config, per_epoch)
    base_lr = learning_rate(optimizer)
    moving_lr = config.schedule != "constant" or config.lr_warmup_steps > 0
    recorder = Recorder(writer, config.batch, rank=backend.rank, disk_full=config.disk_full)
    recorder.follow(device)
    progress = Progress(enabled=leads)
    budget = _Budget(config, last_step)
    with agreed(backend):
        loader = open_loader(config, dataset, batches, device)
    if leads and loader.note:
        say(f"loader {config.loader}: {loader.note}")

    step = epoch = 0
    window_s = 0.0
    stretches: list[list[float]] = []  # begin and end of each stretch of timed steps
    out_of_time = target_reached = stopped = diverged = False
    evaluation: dict[str, Any] = {}
    stream: Iterator[Any] | None = None
    captured: CapturedStep | None = None
    if sampler is not None:
        sampler.wait_ready()
    backend.barrier()
    # One zero for all times of this run: the ranks of a host read one clock, those of other hosts stood at the barrier.
    everybody = backend.gather((os.uname().nodename, now()))
    started = next(at for host, at in everybody if host == os.uname().nodename)
    if resumed is not None:
        started -= resumed.progress["wall_s"]
    if sampler is not None:
        sampler.begin(started)

    def write_checkpoint() -> None:
        state = {
            "window_s": window_s,
            "stretches": stretches,
            "wall_s": now() - started,
            "evaluation": evaluation,
            "evaluated": evaluation.get("steps", 0),
            "target_reached": target_reached,
            "budget": budget.state(),
            "scaler": arithmetic.scaler.state_dict() if arithmetic.scaler else {},
        }
        try:
            keeper.write(step=step, epoch=epoch, model=bare_model, optimizer=optimizer, progress=state, rows=writer)
        except StudyError as error:  # the same on all ranks
            if config.disk_full == "end" or stopped:  # who is stopped needs it to go on
                raise
            if leads:
                say(f"warning: {error}; training goes on without it")
            keeper.step = step

    if resumed is not None:
        with checkpoint.fitting(directory):
            bare_model.load_state_dict(dict(resumed.model))
            optimizer.load_state_dict(dict(resumed.optimizer))
            if arithmetic.scaler:
                arithmetic.scaler.load_state_dict(resumed.progress["scaler"])
        step, epoch = resumed.step, resumed.epoch
        window_s, evaluation = resumed.progress["window_s"], resumed.progress["evaluation"]
        stretches = resumed.progress.get("stretches", stretches)
        with checkpoint.fitting(directory):
            budget.take_up(resumed.progress["budget"])
            keeper.cost = {name: resumed.progress[name] for name in keeper.cost}
        target_reached, out_of_time = resumed.progress["target_reached"], budget.spent
        if writer.kept is not None:
            recorder.take_up(writer.kept)
            writer.kept = None  # they are in the file
    # After what was resumed is in its place, which the graphs will know, and before the clock of the first stretch.
    if config.cuda_graphs:
        with agreed(backend):
            captured = CapturedStep(
                config,
                model=model,
                bare_model=bare_model,
                optimizer=optimizer,
                backend=backend,
                arithmetic=arithmetic,
                device=device,
                resident=resident(loader),
                phases=config.timer_mode == "strict",
            )
        if leads:
            say(_captured_line(captured, config, device))
    laps = ORDINARY_LAPS if captured is None else captured.laps
    clock = ranges.ranged(open_clock(config, device, zero=started), config.ranges, laps)
    if config.checkpoint_at_end:
        stop.defer()
    if backend.last_gradient is not None:
        liveness.watch(arithmetic, "backward")  # the wait for the others is in there
    # One turn is a stretch of steps without interruption: to the end of the warm-up or of the epoch, to the next
    # evaluation or checkpoint, or to the end of the budget. The clock stands between stretches, so that evaluation and
    # checkpoints are outside the timed window.
    while step < last_step and not out_of_time and not target_reached and not stopped:
        stopped = config.checkpoint_at_end and backend.maximum(stop.number) > 0
        if stopped:  # a signal came during an evaluation, or at the end of a stretch
            break
        timed = step >= config.warmup_steps
        evaluate_at = _next_evaluation(config, step, per_epoch)
        keep_at = keeper.next_after(step)
        end = min(last_step, (epoch + 1) * per_epoch, evaluate_at, keep_at, math.inf if timed else config.warmup_steps)
        if stream is None or step == epoch * per_epoch:
            place = step - epoch * per_epoch
            stream = loader.epoch(epoch, place) if captured is None else feed(loader, captured, epoch, place)
        check_every = _steps_between_checks(backend, recorder, config)
        _wait_for_device(device)
        backend.barrier()
        opened = now()
        clock.start()
        while step < end:
            liveness.step, liveness.patience = step, 1.0
            if moving_lr:
                set_learning_rate(optimizer, base_lr * lr_factor(config, step, budget.progress(step)))
            clock.begin()
            batch: Any = next(stream)  # curves (B, C, L) and targets (B, P); None where the graphs gather it
            if captured is not None:
                loss = captured.take(batch, clock)  # laps are made in there
                norm2 = captured.norm2
            else:
                clock.lap("data")
                curves, targets = batch
                loss = train_step(model, optimizer, curves, targets, backend, clock, arithmetic)
                norm2 = backend.local_norm2
            # Where the loss is scaled, gradients that are not finite are usual, and their step is skipped.
            recorder.add(step, epoch, loss, None if arithmetic.scaler else norm2)
            step += 1
            if step % check_every == 0:
                if len(recorder) >= DRAIN_STEPS or now() - recorder.drained > DRAIN_S:
                    recorder.drain_made(clock)
                # One collective for all questions: a rank that is to stop answers with a time that no run takes, one
                # whose loss is no number with endless time. A GPU is not waited for: it may be some hundred steps
                # behind. The end of the stretch waits, and is counted, so that all steps of the window were made in it.
                lost = recorder.looks_broken() if device.type == "cpu" else recorder.broken_step is not None
                asked = stop.requested and step < end  # at the end of a stretch, what is due there comes first
                lost_or_asked_s = math.inf if lost and not diverged else _STOP_S if asked else 0.0
                elapsed_s = backend.maximum(lost_or_asked_s or window_s + now() - opened)
                if math.isinf(elapsed_s):
                    break
                stopped = elapsed_s == _STOP_S
                if timed and config.seconds and not stopped:
                    budget.agree(step, elapsed_s)
                    out_of_time = budget.spent
                if stopped or out_of_time:
                    break
                progress.update(
                    step, last_step, epoch, config, window_s + now() - opened, recorder.samples_per_s(workers)
                )
        _wait_for_device(device)
        if timed:
            window_s += now() - opened
            stretches.append([opened - started, now() - started])
        recorder.drain(clock)
        liveness.patience = PATIENCE  # what follows is longer than a step, and the ranks need not be done together
        broken, full = backend.sum(np.array([recorder.broken_step is not None, recorder.lost_from is not None], float))
        if full:  # the room that is left is for the end of the run
            recorder.stop_rows(step)
        if broken and not diverged:
            _name_broken(backend, recorder, dataset, batches)
            diverged = True

        epoch_ended = step == (epoch + 1) * per_epoch
        if step == evaluate_at or step >= last_step or out_of_time:
            evaluation = {
                "epoch": epoch + 1 if epoch_ended else step / per_epoch,
                "steps": step,
                "samples": step * config.batch * workers,
                "train_s": window_s,
                "wall_s": now() - started,
                "train_mse": float(backend.sum(np.array([recorder.epoch_loss()]))[0]) / workers,
                **evaluate(bare_model, dataset, backend, device),
                "lr": learning_rate(optimizer),
            }
            # Agreed, because a sum over ranks may differ in its last bit from rank to rank.
            reached = config.target_mse is not None and evaluation["test_mse"] <= config.target_mse
            target_reached = backend.maximum(float(reached)) > 0
            if leads:
                records.append_epoch(directory, evaluation)
                progress.epoch(evaluation)
        epoch += epoch_ended
        if step == keep_at:
            write_checkpoint()
    if config.checkpoint_at_end and keeper.step != step:
        write_checkpoint()
    progress.close()
    if sampler is not None:  # what follows is beside the training
        sampler.stop()
    if not stopped:
        scratch = Scratch(
            backend=backend,
            model=model,
            bare_model=bare_model,
            optimizer=optimizer,
            arithmetic=arithmetic,
            loader=loader,
            device=device,
            train_step=train_step,
            captured=captured,
        )
        _measure_beside(config, scratch, directory, made=step, timed_step_s=recorder.recent_step_s)
    if captured is not None:
        captured.close()
    loader.close()
    if stopped:
        name = signal_name(int(backend.maximum(stop.number)))
        raise Stopped(f"stopped by {name} after step {step:,}", totals=keeper.cost)

    hashes = backend.gather(parameter_sha256(bare_model))
    if len(set(hashes)) > 1:
        other = next(rank for rank, digest in enumerate(hashes) if digest != hashes[0])
        raise BackendError(
            f"rank {other} ends with other parameters than rank 0: the gradients were not averaged alike; "
            "do not use this run, and report its settings"
        )
    first = _first_steady(config, backend, recorder, resumed=resumed is not None, made=step)
    if first.step > first.declared:  # the laps tile the window: what it loses is the time of these steps
        window_s -= float(recorder.timed("step_s")[first.declared : first.step].sum())
        stretches = energy.since(stretches, float(recorder.timed("begin_s")[first.step]))
    slowest_s = backend.maximum(window_s)
    summaries = backend.gather(recorder.summary(first.step))
    memory = backend.gather((environment.peak_rss_mb(), environment.pss_mb()))
    steps = step - first.step
    return {
        "samples_per_s": steps * config.batch * workers / slowest_s,
        "window_s": slowest_s,
        "steps": steps,
        "excluded_steps": step - steps,
        "steady": first.to_dict(),
        **records.step_totals(summaries),
        "rows_lost": backend.gather(recorder.rows_lost),
        "epochs": step / per_epoch,
        **{name: evaluation[name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse")},
        **{name: evaluation[name] for name in ("train_s", "wall_s")},
        "target_reached": target_reached if config.target_mse else None,
        **keeper.cost,
        "rss_mb_max": max(rss for rss, _ in memory),
        "pss_mb_max": records.max_over_ranks([pss for _, pss in memory]),
        **system.totals(
            backend.gather(None if sampler is None else system.told(directory, sampler, stretches)),
            samples=steps * config.batch * workers,
        ),
        "parameter_sha256": hashes[0],
    }


def _measure_beside(config: RunConfig, scratch: Scratch, directory: Path, *, made: int, timed_step_s: float) -> None:
    """Make the measurements that were asked for, in steps beside the training; `made` is the number of its own.

    Collective. Rank 0 writes and tells what is found.
    """
    backend = scratch.backend
    leads = backend.rank == 0
    if config.measure_sync and backend.workers > 1:
        found = synchronisation.measure(scratch, repeats=min(synchronisation.REPEATS, made))
        with agreed(backend):
            if leads:
                records.write_synchronisation(directory, found)
    if config.measure_ablation and backend.workers == 1:
        say("note: measure_ablation is left out: one worker has nobody to communicate with")
    elif config.measure_ablation:
        found = ablation.measure(scratch, seed=config.seed, made=made)
        with agreed(backend):
            if leads:
                records.write_ablation(directory, found)
                say(ablation.summary(found))
    told: list[str] = []
    if config.profile:
        told += profiling.profile(
            scratch, kind=config.profile, steps=config.profile_steps, directory=directory, timed_step_s=timed_step_s
        )
    if config.timeline_steps:  # the last of all: Horovod is not what it was afterwards
        told += timeline.record(scratch, steps=config.timeline_steps, directory=directory, timed_step_s=timed_step_s)
    if leads and told:
        say("\n".join(told))


def _name_broken(backend: Backend, recorder: Recorder, dataset: data.Dataset, batches: data.Batches) -> None:
    """Say on which rank and in which step a loss or gradient was not finite first; steps count from 0, as in the rows.

    Collective. Returns when the training diverged, on all ranks at once or nearly so: such a run goes on, and its
    error is recorded as no number. Raises StudyError, on all ranks, when a curve is not finite, or when one rank was
    broken while the others were fine.
    """
    first = min(step for step in backend.gather(recorder.broken_step) if step is not None)
    mine = batches.epoch(first // batches.steps_per_epoch)[first % batches.steps_per_epoch]  # (B,)
    bad = mine[~(np.isfinite(dataset.curves[mine]).all(axis=(1, 2)) & np.isfinite(dataset.targets[mine]).all(axis=1))]
    ranks = backend.gather(
        (os.uname().nodename, *recorder.state_at(first), recorder.broken_step == first, [int(row) for row in bad[:1]])
    )
    broken = [rank for rank, (_, _, _, _, is_first, _) in enumerate(ranks) if is_first]
    others = [state for rank, state in enumerate(ranks) if rank not in broken]
    faulty = [rank for rank in broken if ranks[rank][5]]
    rank = (faulty or broken)[0]
    host, loss, _, lowest, _, rows = ranks[rank]
    what = f"its loss was {loss:g}" if not math.isfinite(loss) else f"its gradients were not finite (its loss {loss:g})"
    where = f"rank {rank} on {host}: {what} at step {first:,}"
    if faulty:
        raise DataError(
            f"{where}, because curve {rows[0]:,} of {dataset.path} is not finite; make or import that data set again"
        )
    exploded = any(loss > _EXPLODED * (1.0 if math.isnan(lowest) else lowest) for _, loss, _, lowest, _, _ in others)
    if others and not exploded:
        sound = "the other rank was" if len(others) == 1 else "the others were"
        raise StudyError(
            f"{where}, while {sound} sound (loss {others[0][1]:g}); look at its batch and its device, or lower --lr"
        )
    if backend.rank == 0:
        who = f"rank{'s' * (len(broken) > 1)} {', '.join(map(str, broken))} first" if others else "on all ranks at once"
        say(
            f"warning: from step {first:,} on the loss is no number"
            + (f" ({who})" if backend.workers > 1 else "")
            + (f", after {lowest:g} at best" if math.isfinite(lowest) else "")
            + ": the training diverged; lower --lr, or raise --lr-warmup-steps"
        )


def _first_steady(
    config: RunConfig, backend: Backend, recorder: Recorder, *, resumed: bool, made: int
) -> steady.Steady:
    """Return the first step of the timed window, found in the step times of rank 0; the same on all ranks.

    Workers that average their gradients wait for each other in every step: the step times of one are those of all.
    """
    declared = min(config.warmup_steps, made)
    why = ""
    if config.steady == "found":
        if config.timer_mode == "off":
            why = "steady steps cannot be found with timer_mode off: the window begins where it was declared"
        elif resumed:
            why = "a resumed run begins twice: its window begins where it was declared, not where it is found steady"
        elif backend.maximum(float(recorder.rows_lost)):
            why = "step rows were lost: the window begins where it was declared, not where the run is found steady"
    found = steady.declared(declared, why)
    if config.steady == "found" and not why:
        with agreed(backend):
            if backend.rank == 0:
                found = steady.find_steady(recorder.timed("step_s"), declared)
        found = steady.Steady(**backend.gather(found.to_dict())[0])
    if backend.rank == 0 and (why or (found.doubt and found.found_by != "declared")):
        say(f"{'note' if why else 'warning'}: {found.doubt}")
    return found


def _device(config: RunConfig, *, local_rank: int) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise BackendError("device cuda was asked for, but PyTorch sees no GPU; use --device cpu or auto")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def open_clock(config: RunConfig, device: torch.device, *, zero: float = 0.0) -> LapClock:
    """Return what times the steps as `timer_mode` says; times count from `zero`."""
    if config.timer_mode == "off":
        return Unstamped()
    if device.type == "cpu":
        return LapClock(zero=zero)

    def settle() -> None:
        # Not the whole device: what the library sends from streams of its own is waited for where training waits.
        torch.cuda.current_stream(device).synchronize()

    return LapClock(device=DeviceStamps(), settle=settle if config.timer_mode == "strict" else None, zero=zero)


def _graphs(config: RunConfig, device: torch.device) -> str:
    """Return what becomes of the step, for the record."""
    if not config.cuda_graphs:
        return "no"
    return "captured" if device.type == "cuda" else "replayed on the host"


def _captured_line(captured: CapturedStep, config: RunConfig, device: torch.device) -> str:
    graphs = len(set(captured.laps) - {"data", "sync"})
    what = f"{graphs} {'CUDA ' if device.type == 'cuda' else ''}graph{'s' * (graphs > 1)}"
    where = "" if device.type == "cuda" else ", replayed on the host"
    return f"the step is captured in {what}{where}: {config.kernels} kernels"


def _timer_mode(config: RunConfig, device: torch.device) -> dict[str, str]:
    """Return how steps are really timed, for the record."""
    if config.cuda_graphs and config.timer_mode != "off":
        note = (
            "forward and backward are CUDA graphs of their own, which they are in no other mode"
            if config.timer_mode == "strict"
            else "compute is what one CUDA graph holds, into which nobody looks; strict tells forward from backward"
        )
        return {"value": config.timer_mode, "note": note}
    if config.timer_mode == "strict" and device.type == "cpu":
        return {"value": "strict", "note": "the same as light: a CPU has done its work when a call returns"}
    return {"value": config.timer_mode, "note": ""}


def _wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ensure_dataset(config: RunConfig, *, threads: int) -> None:
    """Generate a data set that was named by its size and is not there yet, and say so."""
    if data.is_cached(config.dataset, seed=config.data_seed):
        return
    path = data.path_of(config.dataset, seed=config.data_seed)
    say(f"generating {data.parse_size(config.dataset):,} curves (seed {config.data_seed}) into {path}, once")
    began = now()
    data.ensure(config.dataset, seed=config.data_seed, processes=threads)
    say(f"generated in {now() - began:.1f} s")


def _default_out(config: RunConfig, backend: Backend) -> Path:
    runtime = backend.name if backend.transport == "none" else f"{backend.name}-{backend.transport}"
    return Path("runs") / config.study / f"{utc_stamp()}-{runtime}-{backend.workers}w-b{config.batch}-{os.getpid()}"


def _last_step(config: RunConfig, per_epoch: int) -> float:
    """Return the number of steps to make, warm-up included; infinite for a budget of seconds."""
    if config.epochs is not None:
        steps = config.epochs * per_epoch
        if steps <= config.warmup_steps:
            raise ConfigError(
                f"warmup_steps {config.warmup_steps} leaves nothing of {config.epochs} epochs x {per_epoch} steps; "
                "use fewer warm-up steps or more epochs"
            )
        return steps
    return math.inf if config.steps is None else config.warmup_steps + config.steps


def _next_evaluation(config: RunConfig, step: int, per_epoch: int) -> int:
    """Return the first evaluation after `step`: the multiples of evaluate_every epochs, rounded up to whole steps."""
    length = config.evaluate_every * per_epoch
    return max(step + 1, math.ceil((math.floor(step / length) + 1) * length - 1e-9))


class _Budget:
    """How far the run is, equal on all ranks to the last bit, or their learning rates would differ.

    With a budget of steps it is the share of them. With a budget of seconds it is the time that the ranks last agreed
    on and the mean step until then, carried on from there.
    """

    def __init__(self, config: RunConfig, last_step: float) -> None:
        self._seconds, self._warmup_steps, self._last_step = config.seconds, config.warmup_steps, last_step
        self._agreed_step, self._agreed_s, self._step_s = 0, 0.0, 0.0

    def agree(self, step: int, elapsed_s: float) -> None:
        """Note the seconds of the timed window after `step` steps, the same number on all ranks."""
        self._agreed_step, self._agreed_s = step, elapsed_s
        self._step_s = elapsed_s / (step - self._warmup_steps)

    def state(self) -> list[float]:
        """Return what `take_up` needs to continue from here."""
        return [self._agreed_step, self._agreed_s, self._step_s]

    def take_up(self, state: Sequence[float]) -> None:
        """Continue from where `state` was taken."""
        self._agreed_step, self._agreed_s, self._step_s = int(state[0]), state[1], state[2]

    @property
    def spent(self) -> bool:
        """Whether the agreed time has reached the budget of seconds."""
        return self._seconds is not None and self._agreed_s >= self._seconds

    def progress(self, step: int) -> float:
        """Return the share of the budget, 0..1, that is used up when `step` steps are done."""
        if self._seconds is None:
            return step / self._last_step
        return (self._agreed_s + (step - self._agreed_step) * self._step_s) / self._seconds


def _steps_between_checks(backend: Backend, recorder: Recorder, config: RunConfig) -> int:
    """Return how many steps make about a quarter of a second, the same number on all ranks."""
    step_s = backend.maximum(0.0 if math.isnan(recorder.recent_step_s) else recorder.recent_step_s)
    limit = config.seconds / 8 if config.seconds else math.inf
    return max(1, min(DRAIN_STEPS, round(min(0.25, limit) / step_s))) if step_s else 10


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


# ------------------------------------------------------------------------------------------------ command line


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, print; return the exit code. A StudyError becomes one line, on one rank."""
    launch = Launch(launcher="none", rank=0, workers=1, backend="serial")  # until the environment was read
    stop = StopRequest()
    stop.listen()
    try:
        launch = detect(os.environ)
        text = __doc__ or ""  # none under python -OO
        parser = Parser(
            prog="horovod_study.train",
            description=text.partition("\n")[0],
            epilog=text[text.find("Exit codes") : text.find("Letters")],
        )
        add_train_options(parser)
        options = parser.parse_strictly(arguments)
        values = {**(load_yaml(options.config) if options.config else {}), **run_values(options)}
        settings = read_settings(options.settings) if options.settings else None
        budgets = set(BUDGETS)
        if budgets & set(run_values(options)):  # a budget on the command line replaces the file's
            values = {name: v for name, v in values.items() if name not in budgets or name in run_values(options)}
        if options.again and (options.out is None or options.resume is not None):
            raise ConfigError("train: --again starts anew in the directory that --out names; give --out, not --resume")
        if options.resume is not None:
            if options.out is not None:
                raise ConfigError("train: --resume continues in its own directory; leave --out out")
            if settings is not None:
                raise ConfigError("train: --resume continues with the settings of its run; leave --settings out")
            resumption = plan_resume(options.resume, values, workers=launch.workers)
            if resumption.finished:
                return _say_finished(resumption, launch, as_json=options.json)
            result = run(resumption.config, out=options.resume, launch=launch, resumption=resumption, stop=stop)
        else:
            tuned = {} if settings is None else settings.values
            config = run_config({**tuned, **values}, source=str(options.config) if options.config else "train")
            applied = None if settings is None else _apply(settings, config, launch, values.get("backend"))
            result = run(config, out=options.out, launch=launch, stop=stop, settings_file=applied, again=options.again)
    except Stopped as error:
        stop.over()
        if launch.rank == 0:
            say(f"{error}; continue with --resume, everything else as before")
        if launch.workers > 1:
            sys.stdout.flush()
            os._exit(STOPPED_EXIT_CODE)
        return STOPPED_EXIT_CODE
    except Terminated as error:
        if launch.rank > 0:
            os._exit(143)  # the launcher ends all ranks when one has failed; rank 0 speaks for them
        return _fail(f"error: {error}", launch, code=143)
    except LostPeer as error:
        if error.speaks:
            say(f"error: {error}")
        else:
            sleep(5.0)  # another rank says it, and the launcher ends this one
        sys.stdout.flush()
        os._exit(2)
    except StudyError as error:
        return _fail(f"error: {error}", launch, code=2)
    except KeyboardInterrupt:
        return _fail("interrupted; the run is marked failed", launch, code=130)
    except Exception as error:
        if launch.workers == 1:
            if isinstance(error, OSError):
                return limits.refused(error)
            raise
        if limits.is_lack(error):
            limits.end()
        # A bug on one rank: end at once, so that the launcher ends the ranks that wait for this one.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    code = 0
    if launch.rank == 0:
        try:
            print(summary(result), file=sys.stderr if options.json else sys.stdout, flush=True)
            if options.json:
                print(json.dumps(records.finite(result), allow_nan=False), flush=True)
        except OSError as error:  # what was trained is recorded; it only cannot be told
            code = limits.refused(error)
    if launch.launcher != "none":
        # The backend is closed and everything is on the disk. What is left are threads of libraries that now and then
        # abort when the interpreter takes them down (seen with DistributedDataParallel), and fail a good run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _apply(settings: SettingsFile, config: RunConfig, launch: Launch, asked_backend: str | None) -> dict[str, Any]:
    """Refuse settings of another model or runtime, warn of what else differs, and return what the record says of it."""
    with torch.device("meta"):
        parameters = parameter_count(StressCNN(widths=parse_widths(config.widths)))
    settings.require_fit(
        config,
        parameters=parameters,
        launcher=launch.launcher,
        launched=launch.backend,
        asked_backend=None if asked_backend == "auto" else asked_backend,
    )
    facts = {
        "parameters": parameters,
        "widths": config.widths,
        "batch": config.batch,
        "workers": launch.workers,
        "nodes": nodes_of(os.environ, launch.workers),
        "runtime": settings.runtime,
        **(environment.describe() if launch.rank == 0 else {}),
    }
    if launch.rank == 0 and (warning := settings.warning(facts)):
        say(warning)
    return settings.record(facts)


def _say_finished(resumption: Resumption, launch: Launch, *, as_json: bool) -> int:
    if launch.rank == 0:
        say(f"{resumption.directory}: the run is finished: {resumption.finished}")
        if as_json:
            record = resumption.record
            print(json.dumps(_printed(resumption.directory.absolute(), record.effective, record.totals)), flush=True)
    return 0


def _fail(message: str, launch: Launch, code: int) -> int:
    """Print `message` once. Ranks that share an error end when rank 0 does; one that is alone speaks a little later."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's signal to the remaining ranks is no second failure
    if launch.rank > 0:
        sleep(2.0)
    say(message)
    # Not sys.exit: a library's exit handler may wait for ranks that are gone.
    sys.stdout.flush()
    if launch.workers > 1:
        os._exit(code)
    return code


def summary(result: dict[str, Any]) -> str:
    """Return the closing table of a run as text."""
    return "\n".join(
        [
            "",
            f"  test MSE {result['test_mse']:.3e} after {result['epochs']:.3g} epochs"
            f"   (error of G0 {result['g0_rmse_mpa']:.1f} MPa, of a {result['a_rmse']:.2f}, root mean square)",
            *([f"  {result['floor_text']}"] if result["floor_text"] else []),
            f"  {result['samples_per_s']:,.0f} samples/s with {result['workers']} worker{'s' * (result['workers'] > 1)}"
            + (
                "   steps were not timed"
                if result["step_ms_median"] is None
                else f"   step {result['step_ms_median']:.2f} ms (median), {result['step_ms_p90']:.2f} ms (p90)"
            )
            + f"   {result['steps']:,} steps in {result['window_s']:.1f} s",
            *_steady_lines(result["steady"]),
            "",
            *_lap_lines(result["laps_share"], workers=result["workers"]),
            *_lost_lines(result["rows_lost"] or []),
            *_checkpoint_lines(result),
            f"  recorded in {os.path.relpath(result['run_dir'])}",
        ]
    )


def _steady_lines(found: Mapping[str, Any] | None) -> list[str]:
    if not found or found["step"] == found["declared"]:
        return []
    more = found["step"] - found["declared"]
    return [
        f"  steady from step {found['step']:,} on: {more:,} step{'s' * (more > 1)} more than the declared "
        f"{found['declared']:,} are outside the window"
    ]


def _lap_lines(shares: Mapping[str, float | None], *, workers: int) -> list[str]:
    if all(value is None for value in shares.values()):
        return []
    # What a step has not is left out. What it has and nobody sees is the wait for other workers.
    shares = {lap: share for lap, share in shares.items() if share is not None or (lap == "sync" and workers > 1)}
    names = {**{lap: lap for lap in LAPS}, "residual": "unexplained"}
    cells = [(names[name], "not known" if value is None else f"{value:.1%}") for name, value in shares.items()]
    heads, texts = zip(("share of the step", ""), *cells, strict=True)
    return [*to_lines(table_of(heads, [texts]), indent=2), ""]


def _lost_lines(rows_lost: Sequence[int]) -> list[str]:
    lost = [f"{rows:,} of rank {rank}" for rank, rows in enumerate(rows_lost) if rows]
    return (
        [f"  step rows lost to a full disk: {', '.join(lost)}; times are those of the rows there are"] if lost else []
    )


def _checkpoint_lines(result: dict[str, Any]) -> list[str]:
    count, seconds, size = (result[name] for name in ("checkpoints", "checkpoint_s", "checkpoint_bytes"))
    if not count:
        return []
    return [
        f"  {count} checkpoint{'s' * (count > 1)}, {size / 1e6:.1f} MB, took {seconds:.3f} s beside the timed window"
    ]


if __name__ == "__main__":
    sys.exit(main())
