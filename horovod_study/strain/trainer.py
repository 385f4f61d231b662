"""The training that is measured: what is trained, its record, the step, the loop. Read top to bottom.

`recording.session` surrounds it: the run directory, rows of steps, turns, the sampler of the host.
Letters: B curves per worker and step, C = 3 channels, L = 201 points, P = 2 targets.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from horovod_study import records
from horovod_study.comm import Backend, Launch, fail_together, gpus, open_backend, require_parity, traffic
from horovod_study.comm.liveness import PATIENCE, Liveness, Stopped, StopRequest, signal_name
from horovod_study.config.doors import conform
from horovod_study.config.run import LAPS, ORDINARY_LAPS, asked_for, misplaced, requirements, unmet
from horovod_study.errors import BackendError, DataError, StudyError
from horovod_study.measure import environment
from horovod_study.measure.clock import LapClock, now, utc_stamp
from horovod_study.measure.environment import affinity
from horovod_study.measure.recorder import DRAIN_STEPS, Recorder
from horovod_study.recording.rank import facts
from horovod_study.recording.session import Session, settle
from horovod_study.strain import checkpoint, profiling, resume, synchronisation
from horovod_study.strain import dataset as data
from horovod_study.strain.graphs import CapturedStep
from horovod_study.strain.loaders import feed, open_loader, resident
from horovod_study.strain.material import CHANNELS, POINTS
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, accelerate, learning_rate, make_optimizer, set_learning_rate
from horovod_study.strain.options import Budget, StrainConfig, last_step, lr_factor, next_evaluation, parse_widths
from horovod_study.strain.options import scaled_lr as scaled_lr
from horovod_study.strain.room import keep_freed_memory
from horovod_study.strain.scratch import Scratch
from horovod_study.text.progress import Line, say
from horovod_study.text.words import plural

_STOP_S = 1e300
"""The time of a rank that was asked to stop: no run takes so long."""


def run(
    config: StrainConfig,
    *,
    out: Path | None,
    launch: Launch,
    resumption: resume.Resumption | None = None,
    stop: StopRequest | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Train as `config` says and record the run in `out`; return what `--json` prints, on every rank.

    With `resumption`, continue that run in its directory `out`. `again` moves a run that is in `out` already aside.
    Collective: every rank of the launch must call it.
    Raises StudyError, on all ranks, for what the user can fix, and Stopped when `stop` was requested.
    """
    keep_freed_memory()
    # Moments of units that get no gradient any more fade into denormal numbers and stay there, which makes the updates
    # of a long training slow (`benchmarks/native.py` measures it).
    torch.set_flush_denormal(True)
    liveness = Liveness(config.start_timeout_s, launch)
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    nccl = traffic.Capture(wanted=on_gpu and config.transport in ("auto", "nccl") and launch.workers > 1)
    try:
        backend = open_backend(config, launch)
        own = ("threads", "start_timeout_s")  # each rank may have its own
        asked = {name: value for name, value in vars(config).items() if name not in own}
        package = environment.describe_package()
        more = {"backend": backend.name, "resume": resumption is not None, "package version": package}
        require_parity(backend, {**asked, **more})
        liveness.follow(backend, config.stall_timeout_s)  # everybody has arrived; what follows fails together
        with Session(backend, config, liveness=liveness) as session:
            training = Training(config, backend, session, liveness, stop or StopRequest())
            runtime = backend.name if backend.transport == "none" else f"{backend.name}-{backend.transport}"
            name = f"{utc_stamp()}-{runtime}-{backend.workers}w-b{config.batch}-{os.getpid()}"
            earlier = None if resumption is None else resumption.record
            session.claim(out or Path("runs") / config.study / name, again=again, earlier=earlier)
            training.begin({**training.describe(nccl), "launcher": launch.launcher}, resumption)
            training.train()
            totals = training.finish()
            session.finish(totals)
    finally:
        liveness.close()
        nccl.close()
    backend.close()  # not after a failure: leaving is collective, and the other ranks may be gone
    return printed(session.directory, session.record.effective, totals)


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
    arithmetic.zero_grad(optimizer, backend)
    loss = arithmetic.loss(model, curves, targets)
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


class Training:
    """What is trained on this rank, the same on every rank; the loop, and what a checkpoint holds of it."""

    def __init__(
        self, config: StrainConfig, backend: Backend, session: Session, liveness: Liveness, stop: StopRequest
    ) -> None:
        """Make what is trained. Collective. Raises StudyError, on all ranks, for what cannot be as it was asked for."""
        self.config, self.backend, self.session, self.liveness, self.stop = config, backend, session, liveness, stop
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
            share = {"rank": backend.rank, "workers": backend.workers}
            self.batches = data.Batches(self.dataset.train_size, batch=config.batch, seed=config.seed, **share)
            self.per_epoch = self.batches.steps_per_epoch
            self.last_step = last_step(config, self.per_epoch)  # complains before anything is written
            self.budget = Budget(config, self.last_step)
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
        self.parts: dict[str, Any] = {"backend": backend, "model": self.model, "bare_model": self.bare_model}
        self.parts |= {"optimizer": self.optimizer, "arithmetic": self.arithmetic, "device": device}
        self.base_lr = learning_rate(self.optimizer)
        self.step = self.epoch = 0
        self.target_reached = self.stopped = self.diverged = False
        self.ended = False  # by whoever gives turns
        self.evaluation: dict[str, Any] = {}
        self.stream: Iterator[Any] | None = None
        self.captured: CapturedStep | None = None
        self.line = Line(enabled=session.is_root)
        self.kept = -1  # the step of the newest checkpoint of this process
        # all checkpoints so far; of the one a run was resumed from it is not known
        self.cost = {"checkpoints": 0, "checkpoint_s": 0.0, "checkpoint_bytes": 0}

    def describe(self, nccl: traffic.Capture) -> dict[str, Any]:
        """Return what really runs, and where gradients pass, for the record. Collective."""
        config, backend, session, dataset = self.config, self.backend, self.session, self.dataset
        taken = traffic.watch(
            backend,
            self._average,
            hosts=session.hosts,
            payload_bytes=sum(each.numel() * each.element_size() for each in self.bare_model.parameters()),
            servers=config.ps_servers if backend.name == "ps" else None,
        )
        if backend.transport == "nccl" and backend.workers > 1:
            taken = traffic.told_by_nccl(taken, backend.gather(nccl.read()), session.hosts)
        nccl.close()
        if config.compile:  # compilers are started as programs of their own, and are no other load
            session.watch_load()
        session.describe_ranks(
            self.device, lr=self.base_lr, settings=backend.settings, path=taken["ranks"][backend.rank]
        )
        require_parity(backend, {"learning rate": self.base_lr})
        timed: dict[str, Any] = {}
        if config.cuda_graphs and config.timer_mode != "off":  # how steps in CUDA graphs are really timed
            note = "compute is what one CUDA graph holds, into which nobody looks; strict tells forward from backward"
            if config.timer_mode == "strict":
                note = "forward and backward are CUDA graphs of their own, which they are in no other mode"
            timed = {"timer_mode": {"value": config.timer_mode, "note": note}}
        captured = "captured" if self.device.type == "cuda" else "replayed on the host"
        as_asked = ("batch", "schedule", "precision", "widths", "input_scaling", "memory_format", "loader")
        return {
            **session.effective,
            **{name: getattr(config, name) for name in as_asked},
            "kernels": self.arithmetic.kernels,
            **timed,
            "global_batch": config.batch * backend.workers,
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
            **{name: getattr(backend, name) for name in ("transport", "reduction", "settings")},
            "backend": backend.name,
            "path": taken["path"],
            "path_reason": taken["reason"],
            "path_evidence": taken["evidence"],
        }

    def _average(self) -> None:
        """Average gradients once over the way of training, hooks included, and leave no trace of it."""
        size = self.config.batch if self.config.compile else 1  # what was compiled takes batches of one size only
        kind = next(self.model.parameters()).dtype
        curves = torch.zeros(size, CHANNELS, POINTS, device=self.device, dtype=kind)
        self.backend.zero_grad(self.optimizer)
        with self.arithmetic.autocast():
            loss = self.model(curves).sum()
        loss.backward()
        self.backend.synchronize(self.optimizer)
        self.backend.zero_grad(self.optimizer)
        settle(self.device)

    def begin(self, effective: dict[str, Any], resumption: resume.Resumption | None) -> None:
        """Write the record before the first step, say what runs, and go on from a checkpoint. Collective."""
        config, backend, session, directory = self.config, self.backend, self.session, self.session.directory
        self.resumed = resumed = None if resumption is None else self._read_checkpoint(resumption, effective)
        earlier, from_step = (resumption.record, resumed.step) if resumption and resumed else (None, None)
        session.create(vars(config), effective, batch=config.batch, earlier=earlier, from_step=from_step)
        if session.is_root:
            path, workers = effective["path"], backend.workers
            several = f" over {backend.transport}, {backend.reduction} reduction" if workers > 1 else ""
            through = f", through {' and '.join(path)}" if path else ""
            say(
                f"{plural(workers, 'worker')} ({backend.name}{several}{through}), batch {config.batch} each, "
                f"{self.dataset.train_size:,} training curves, {effective['parameters']:,} parameters"
            )
            if resumption is not None and resumed is not None:
                say(f"resumed after step {resumed.step:,} with {directory / checkpoint.name_of(resumed.step)}")
                for note in resume.notes(resumption, session.record.environment, effective):
                    say(note)
            for doubt in session.doubts:
                say(f"warning: {doubt}")
        if config.require is not None:
            faults = unmet(
                requirements(config.require, config.workload.options),
                asked=asked_for(config, lr=scaled_lr(config, backend.workers)),
                effective=effective,
                environment=backend.gather(session.record.environment)[0],
            )
            if faults:
                raise BackendError(f"{'; '.join(faults)}; start the run as required, or change --require")
        with fail_together(backend):
            self.loader = open_loader(config, self.dataset, self.batches, self.device)
        if session.is_root and self.loader.note:
            say(f"loader {config.loader}: {self.loader.note}")
        session.start(self.device, elapsed_s=0.0 if resumed is None else resumed.progress["wall_s"])
        if resumed is not None:
            self._take_up(resumed)
        # After what was resumed is in its place, which the graphs will know, and before the first stretch.
        if config.cuda_graphs:
            self._capture()
        laps, stamps = (ORDINARY_LAPS, None) if self.captured is None else (self.captured.laps, self.captured.stamps)
        session.open_clock(laps, ranges=config.ranges, stamps=stamps)
        if config.checkpoint_at_end:
            self.stop.defer()
        if backend.last_gradient is not None:
            self.liveness.watch(self.arithmetic, "backward")  # the wait for the others is in there

    def _read_checkpoint(self, resumption: resume.Resumption, effective: dict[str, Any]) -> checkpoint.Checkpoint:
        """Return the newest checkpoint of the run that goes on, whose directory is made ready for it. Collective."""
        is_root, directory, content = self.session.is_root, self.session.directory, b""
        with fail_together(self.backend):
            if is_root:  # the hosts of the others may not see the file
                content = checkpoint.read_newest(directory)
        resumed = checkpoint.decode(self.backend.gather(content)[0], str(directory))
        conform(
            resumed.progress,
            checkpoint.LoopState,
            f"{directory}: progress of its checkpoint",
            again="start the run again",
        )
        with fail_together(self.backend):
            if is_root:
                resume.require_same_run(directory, resumption.record, effective)
                checkpoint.set_aside_newer(directory, resumed.step)
                records.truncate_epochs(directory, resumed.progress["evaluated"])
        return resumed

    def _take_up(self, resumed: checkpoint.Checkpoint) -> None:
        """Put what a checkpoint holds into its place."""
        state = resumed.progress
        with checkpoint.fitting(self.session.directory):
            self.bare_model.load_state_dict(resumed.model)
            self.optimizer.load_state_dict(resumed.optimizer)
            if self.arithmetic.scaler:
                self.arithmetic.scaler.load_state_dict(state["scaler"])
            self.budget.take_up(state["budget"])
            self.cost = {name: state[name] for name in self.cost}
            self.step, self.epoch = resumed.step, resumed.epoch
            self.evaluation, self.target_reached = state["evaluation"], state["target_reached"]
            self.session.take_up(state)

    def _capture(self) -> None:
        """Record the step as CUDA graphs. Collective."""
        config, on_gpu = self.config, self.device.type == "cuda"
        with fail_together(self.backend):
            strict = config.timer_mode == "strict"
            captured = self.captured = CapturedStep(config, **self.parts, resident=resident(self.loader), phases=strict)
        if self.session.is_root:
            graphs = len(set(captured.laps) - {"data", "sync"})
            what = f"{graphs} {'CUDA ' if on_gpu else ''}graph{'s' * (graphs > 1)}"
            say(f"the step is captured in {what}{'' if on_gpu else ', replayed on the host'}: {config.kernels} kernels")

    def train(self) -> None:
        """Train to the end of the budget, to the target, or until a signal stops all ranks at the same step.

        What is repeated is a stretch of steps without interruption: to the end of the warm-up or of the epoch, to the
        next evaluation or checkpoint, to where the run waits for its turn, or to the end of the budget. The clock is
        between stretches, so that evaluation, checkpoints and that wait are outside the timed window. Between the first
        and the last lap of a step nothing is printed, read, written or waited for.
        """
        config, backend, session, liveness = self.config, self.backend, self.session, self.liveness
        model, optimizer, arithmetic, captured = self.model, self.optimizer, self.arithmetic, self.captured
        rows, clock, per_epoch = session.rows, session.clock, self.per_epoch
        moving_lr = config.schedule != "constant" or config.lr_warmup_steps > 0
        while not (self.target_reached or self.stopped or self.ended or self._is_done):
            step, epoch = self.step, self.epoch
            if step >= session.granted and not self._wait_for_turn():
                continue
            self.stopped = config.checkpoint_at_end and backend.maximum(self.stop.number) > 0
            if self.stopped:  # a signal came during an evaluation, or at the end of a stretch
                break

            # How far this stretch goes.
            timed, epoch_end = step >= config.warmup_steps, (epoch + 1) * per_epoch
            evaluate_at, every = next_evaluation(config, step, per_epoch), config.checkpoint_every
            keep_at = math.inf if every is None else (step // every + 1) * every
            end = min(epoch_end, evaluate_at, keep_at, math.inf if timed else config.warmup_steps)
            end = min(end, self.last_step if session.turns is None else session.granted)
            place = step - epoch * per_epoch
            if self.stream is None or place == 0:
                self.stream = feed(self.loader, captured, epoch, place)
            check_every = _steps_between_checks(backend, rows, config)
            settle(self.device)
            backend.barrier()

            session.open_stretch(timed=timed)
            while step < end:
                liveness.step, liveness.patience = step, 1.0
                if moving_lr:
                    set_learning_rate(optimizer, self.base_lr * lr_factor(config, step, self.budget.progress(step)))
                clock.begin(None if captured is None else captured.begin_of_next(clock))
                batch: Any = next(self.stream)  # curves (B, C, L) and targets (B, P); None where the graphs gather it
                if captured is not None:
                    loss = captured.take(batch, clock)  # laps are made in there
                    norm2 = captured.norm2
                else:
                    clock.lap("data")
                    curves, targets = batch
                    loss = train_step(model, optimizer, curves, targets, backend, clock, arithmetic)
                    norm2 = backend.local_norm2
                # Where the loss is scaled, gradients that are not finite are usual, and their step is skipped.
                rows.add(step, epoch, loss, None if arithmetic.scaler else norm2)
                step += 1
                if step % check_every == 0:
                    session.write_rows()
                    if self._is_over(step, at_end=step >= end, timed=timed):
                        break
                    if self.line.due():
                        self.line.show(self._where(step))
            self.step = step
            session.close_stretch()
            liveness.patience = PATIENCE  # what follows is longer than a step, and the ranks need not be done together

            self._look_for_faults()
            if step == evaluate_at or self._is_done:
                self._evaluate()
            self.epoch += step == epoch_end
            if step == keep_at:
                self._write_checkpoint()
        if self.ended and self.evaluation.get("steps") != self.step:
            self._evaluate()
        if config.checkpoint_at_end and self.kept != self.step:
            self._write_checkpoint()

    @property
    def _has_enough(self) -> bool:
        return self.step >= self.last_step or self.budget.spent

    @property
    def _is_done(self) -> bool:
        """Whether no step follows. In turns the budget is the least: who gives turns says when it is enough."""
        return self.session.turns is None and self._has_enough

    def _wait_for_turn(self) -> bool:
        """Wait until steps are granted; False where none follow. Collective once the wait is over."""
        said = self.session.wait_for_turn(
            self.step,
            samples=self.step * self.config.batch,
            enough=self._has_enough,
            least=int(self.last_step) if math.isfinite(self.last_step) else None,
        )
        # Where the runner is killed some ranks may have been granted steps and others not: they agree on the worst.
        agreed = self.backend.maximum(("go", "end", "lost").index(said))
        self.ended = agreed == 1
        self.stopped |= agreed == 2
        return agreed == 0

    def _is_over(self, step: int, *, at_end: bool, timed: bool) -> bool:
        """Return whether the ranks agree that no step follows in this stretch: a signal, a loss, or the time.

        One collective for all questions: a rank that is to stop answers with a time that no run takes, one whose loss
        is not a number with endless time. A GPU is not waited for: it may be some hundred steps behind. The end of the
        stretch waits, and is counted, so that all steps of the window were made in it.
        """
        rows = self.session.rows
        lost = rows.looks_broken() if self.device.type == "cpu" else rows.broken_step is not None
        asked = self.stop.requested and not at_end  # at the end of a stretch, what is due there comes first
        lost_or_asked_s = math.inf if lost and not self.diverged else _STOP_S if asked else 0.0
        elapsed_s = self.backend.maximum(lost_or_asked_s or self.session.elapsed_s)
        self.stopped = elapsed_s == _STOP_S
        if math.isinf(elapsed_s) or self.stopped:
            return True
        if timed and self.config.seconds:
            self.budget.agree(step, elapsed_s)
        return self.session.turns is None and self.budget.spent

    def _where(self, step: int) -> str:
        """Return how far the run is after `step` steps, for the line of its progress."""
        config, window_s = self.config, self.session.elapsed_s
        if config.seconds:
            done, where = min(1.0, window_s / config.seconds), f"{window_s:.0f}/{config.seconds:g} s"
        else:
            done, where = step / self.last_step, f"step {step:,}/{self.last_step:,.0f}"
        rate = self.session.rows.samples_per_s(self.backend.workers)
        speed = "" if math.isnan(rate) else f"  {rate:,.0f} samples/s"
        left = f"  {window_s / done - window_s:.0f} s left" if done > 0 and window_s > 0 else ""
        return f"  epoch {self.epoch + 1}  {where}  {100 * done:4.0f} %{speed}{left}"

    def _look_for_faults(self) -> None:
        """Give up rows that find no room, and a training that is broken on one rank. Collective."""
        rows, backend = self.session.rows, self.backend
        broken, full = backend.sum(np.array([rows.broken_step is not None, rows.lost_from is not None], float))
        if full:  # the room that is left is for the end of the run
            rows.stop_rows(self.step)
        if broken and not self.diverged:
            name_broken(self)
            self.diverged = True

    def _evaluate(self) -> None:
        """Look at the test set, all ranks together, and say and record what the run has reached."""
        session, backend = self.session, self.backend
        epoch_ended = self.step == (self.epoch + 1) * self.per_epoch
        self.evaluation = row = {
            "epoch": self.epoch + 1 if epoch_ended else self.step / self.per_epoch,
            "steps": self.step,
            "samples": self.step * self.config.batch * backend.workers,
            "train_s": session.window_s,
            "wall_s": now() - session.zero,
            "train_mse": float(backend.sum(np.array([session.rows.epoch_loss()]))[0]) / backend.workers,
            **evaluate(self.bare_model, self.dataset, backend, self.device),
            "lr": learning_rate(self.optimizer),
        }
        # Agreed, because a sum over ranks may differ in its last bit from rank to rank.
        target = self.config.target_mse
        self.target_reached = backend.maximum(float(target is not None and row["test_mse"] <= target)) > 0
        if session.is_root:
            records.append_epoch(session.directory, row)
        self.line.keep(
            f"  epoch {row['epoch']:.3g}: train MSE {row['train_mse']:.3e}, test MSE {row['test_mse']:.3e}, "
            f"G0 {row['g0_rmse_mpa']:.1f} MPa, a {row['a_rmse']:.2f}, {row['train_s']:.1f} s"
        )

    def _write_checkpoint(self) -> None:
        """Write the state after this step, all ranks together; who cannot ends the run, or goes on without it."""
        session, config, began, size = self.session, self.config, now(), 0
        assert session.writer is not None
        scaler = self.arithmetic.scaler
        progress = {
            **session.progress(),
            "wall_s": now() - session.zero,
            "evaluation": self.evaluation,
            "evaluated": self.evaluation.get("steps", 0),
            "target_reached": self.target_reached,
            "budget": self.budget.state(),
            "scaler": scaler.state_dict() if scaler else {},
            **self.cost,
        }
        self.kept = self.step
        try:
            with fail_together(self.backend):
                session.writer.sync()  # no checkpoint before the rows that lead to it are on the disk, on all ranks
            with fail_together(self.backend):
                if session.is_root:
                    state = checkpoint.Checkpoint(
                        step=self.step,
                        epoch=self.epoch,
                        model=self.bare_model.state_dict(),
                        optimizer=self.optimizer.state_dict(),
                        progress=progress,
                        config=vars(config),
                        target_bounds=self.dataset.target_bounds.tolist(),
                        input_scaling=config.input_scaling,
                        widths=config.widths,
                    )
                    size = checkpoint.save(session.directory, state)
        except StudyError as error:  # the same on all ranks
            if config.disk_full == "end" or self.stopped:  # who is stopped needs it to go on
                raise
            if session.is_root:
                say(f"warning: {error}; training goes on without it")
        else:
            new = {"checkpoints": 1, "checkpoint_s": now() - began, "checkpoint_bytes": size}
            self.cost = {name: self.cost[name] + new[name] for name in self.cost}

    def finish(self) -> dict[str, Any]:
        """Measure what was asked for beside the training; return the totals of the timed window. Collective.

        Raises Stopped, on all ranks, when any of them was asked to stop.
        """
        session, backend = self.session, self.backend
        self.line.close()
        session.stop_sampling()
        if not self.stopped:
            self._measure_beside()
        if self.captured is not None:
            self.captured.close()
        self.loader.close()
        if self.stopped:
            number = int(backend.maximum(self.stop.number))
            why = f"by {signal_name(number)}" if number else "because the runner that gave its turns has ended"
            raise Stopped(f"stopped {why} after step {self.step:,}", totals=self.cost)

        hashes = backend.gather(facts.digest([self.bare_model]))
        if len(set(hashes)) > 1:
            other = next(rank for rank, digest in enumerate(hashes) if digest != hashes[0])
            raise BackendError(
                f"rank {other} ends with other parameters than rank 0: the gradients were not averaged alike; "
                "do not use this run, and report its settings"
            )
        first = session.find_steady(self.step, resumed=self.resumed is not None)
        return {
            **session.totals(first, made=self.step, samples=(self.step - first.step) * self.config.batch),
            "epochs": self.step / self.per_epoch,
            **{
                name: self.evaluation[name]
                for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "train_s", "wall_s")
            },
            "target_reached": self.target_reached if self.config.target_mse else None,
            **self.cost,
            "parameter_sha256": hashes[0],
        }

    def _measure_beside(self) -> None:
        """Make the measurements that were asked for, in steps beside the training. Collective."""
        config, directory, is_root = self.config, self.session.directory, self.session.is_root
        where: dict[str, Any] = {"directory": directory, "timed_step_s": self.session.rows.recent_step_s}
        scratch = Scratch(**self.parts, loader=self.loader, train_step=train_step, captured=self.captured)

        def keep(name: str, found: Any) -> None:
            with fail_together(self.backend):
                if is_root:
                    records.write_bench(directory, name, found)

        if config.measure_sync and self.backend.workers > 1:
            keep("synchronisation", synchronisation.measure(scratch, repeats=min(synchronisation.REPEATS, self.step)))
        if config.measure_ablation and self.backend.workers == 1:
            say("note: measure_ablation is left out: one worker has nobody to communicate with")
        elif config.measure_ablation:
            found = synchronisation.ablate(scratch, seed=config.seed, made=self.step)
            keep("ablation", found)
            if is_root:
                say(synchronisation.ablation_line(found))
        told: list[str] = []
        if config.profile:
            told += profiling.profile(scratch, kind=config.profile, steps=config.profile_steps, **where)
        if config.timeline_steps:  # the last of all: Horovod is not what it was afterwards
            told += profiling.horovod_timeline(scratch, steps=config.timeline_steps, **where)
        if is_root and told:
            say("\n".join(told))


def name_broken(training: Training) -> None:
    """Say on which rank and in which step a loss or gradient was not finite first; steps count from 0, as in the rows.

    Collective. Returns when the training diverged, on all ranks at once or nearly so: such a run goes on, and its
    error is recorded as no number. Raises StudyError, on all ranks, when a curve is not finite, or when one rank was
    broken while the others were fine.
    """
    backend, dataset, batches = training.backend, training.dataset, training.batches
    rows = training.session.rows
    first = min(step for step in backend.gather(rows.broken_step) if step is not None)
    mine = batches.epoch(first // batches.steps_per_epoch)[first % batches.steps_per_epoch]  # (B,)
    bad = mine[~(np.isfinite(dataset.curves[mine]).all(axis=(1, 2)) & np.isfinite(dataset.targets[mine]).all(axis=1))]
    ranks = backend.gather(
        (os.uname().nodename, *rows.state_at(first), [int(row) for row in bad[:1]], rows.broken_step == first)
    )
    broken = [rank for rank, each in enumerate(ranks) if each[-1]]
    sound = [(loss, lowest) for _, loss, _, lowest, _, is_broken in ranks if not is_broken]
    faulty = [rank for rank in broken if ranks[rank][4]]
    rank = (faulty or broken)[0]
    host, loss, _, lowest, curve, _ = ranks[rank]
    what = f"its loss was {loss:g}" if not math.isfinite(loss) else f"its gradients were not finite (its loss {loss:g})"
    where = f"rank {rank} on {host}: {what} at step {first:,}"
    if faulty:
        why = f"because curve {curve[0]:,} of {dataset.path} is not finite"
        raise DataError(f"{where}, {why}; make or import that data set again")
    # A loss that has grown so many times was diverging, whichever rank had the first one that is not a number.
    exploded = any(loss > 1000.0 * (1.0 if math.isnan(least) else least) for loss, least in sound)
    if sound and not exploded:
        why = f"while {'the other rank was' if len(sound) == 1 else 'the others were'} sound (loss {sound[0][0]:g})"
        raise StudyError(f"{where}, {why}; look at its batch and its device, or lower --lr")
    if backend.rank == 0:
        who = f"rank{'s' * (len(broken) > 1)} {', '.join(map(str, broken))} first" if sound else "on all ranks at once"
        best = f", after {lowest:g} at best" if math.isfinite(lowest) else ""
        told = f"from step {first:,} on the loss is not a number{f' ({who})' if backend.workers > 1 else ''}{best}"
        say(f"warning: {told}: the training diverged; lower --lr, or raise --lr-warmup-steps")


def _steps_between_checks(backend: Backend, rows: Recorder, config: StrainConfig) -> int:
    """Return how many steps make about a quarter of a second, the same number on all ranks."""
    step_s = backend.maximum(0.0 if math.isnan(rows.recent_step_s) else rows.recent_step_s)
    limit = config.seconds / 8 if config.seconds else math.inf
    return max(1, min(DRAIN_STEPS, round(min(0.25, limit) / step_s))) if step_s else 10


def evaluate(model: StressCNN, dataset: data.Dataset, backend: Backend, device: torch.device) -> dict[str, float]:
    """Return the test MSE (mean over both normalised targets) and the root mean square errors of G0 (MPa) and a.

    Each worker takes every workers-th test curve; the sums of squares are added up in float64, over all workers.
    """
    rows = torch.from_numpy(data.test_rows(np.arange(backend.rank, dataset.test_size, backend.workers)))
    curves, targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
    squares = np.zeros(2)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for part in torch.split(rows, 512):
            errors = model(curves.index_select(0, part).to(device)).cpu() - targets.index_select(0, part)
            squares += errors.double().square().sum(dim=0).numpy()
    model.train(training)
    mean_squares = backend.sum(squares) / dataset.test_size
    g0_rmse_mpa, a_rmse = np.sqrt(mean_squares) * dataset.target_span
    return {"test_mse": float(mean_squares.mean()), "g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}


def compared_to_floor(test_mse: float, floor_mse: float | None, test_size: int) -> str:
    """Return one line on where a test MSE is between the statistical floor and the rest; empty without a floor.

    The squared errors of curves scatter by about twice their mean, so three standard errors are 6/sqrt(test_size).
    The posterior mean, the best that any network can do on this data, has 0.93 of the Cramer-Rao bound (the known range
    of the targets helps a little); less than 0.9 is not skill but an error somewhere.
    """
    if not np.isfinite(test_mse):
        return "the test MSE is not a number: the training diverged; lower --lr, or raise --lr-warmup-steps"
    if not floor_mse:
        return ""
    if test_mse < 0.9 * floor_mse * (1 - 6 / np.sqrt(test_size)):
        return (
            f"the test MSE is below what the noise of the test curves allows ({floor_mse:.2e}): a bug, for instance "
            "test curves among the training curves, or targets scaled otherwise; do not use this number, and report it"
        )
    return (
        f"efficiency {floor_mse / test_mse:.2f}: the noise of the test curves allows {floor_mse:.2e} (Cramer-Rao bound)"
    )


def printed(directory: Path, effective: Mapping[str, Any], totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--json` prints of a finished run, from its record."""
    laps_s = totals["lap_medians_s"]
    shares = {name: totals[f"{name}_s"] for name in (*LAPS, "residual")}
    run = ("backend", "transport", "reduction", "workers", "nodes", "batch", "parameters", "floor_mse")
    same = (
        *("samples_per_s", "train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "steps", "target_reached"),
        *("train_s", "wall_s", "checkpoints", "checkpoint_s", "checkpoint_bytes", "window_s"),
        *("rss_mb_max", "pss_mb_max", "parameter_sha256"),
    )
    return {
        "run_dir": str(directory),
        **{name: effective[name] for name in run},
        "path": effective.get("path"),
        "step_ms_median": _ms(totals["step_s_median"]),
        "step_ms_p90": _ms(totals["step_s_p90"]),
        "sync_ms_median": _ms(laps_s["sync"]),
        "laps_ms": {name: _ms(value) for name, value in laps_s.items()},
        "laps_share": {name: None if lap_s is None else lap_s / totals["step_s"] for name, lap_s in shares.items()},
        "floor_text": compared_to_floor(totals["test_mse"], effective["floor_mse"], effective["test_samples"]),
        "steady": totals.get("steady"),
        "rows_lost": totals.get("rows_lost"),
        **{name: totals[name] for name in same},
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
