"""ONE recorded run, from the first meeting of its ranks to its totals: what surrounds a training loop.

    session = Session(backend, options)               places and hosts of the ranks, sampler, other load
    with session:                                     whatever fails in here is told in the record
        ...                                           the training makes what it trains
        session.describe_ranks(...)                   what each rank really has, and what is to be doubted
        session.claim(directory)                      nobody else writes there
        session.create(...)                           run.json and the files of step rows, before the first step
        session.start(device); session.open_clock()   the zero of all times
        ...                                           the loop: open_stretch, clock.lap, rows.add, close_stretch
        session.finish(session.totals(...))

Our own trainer is recorded by it. Of what is trained it knows what it is told in these calls, and nothing more. All
methods but those of the loop are collective.
"""

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from horovod_study import records
from horovod_study.comm import fail_together
from horovod_study.comm.base import Backend
from horovod_study.comm.liveness import Liveness, LostPeer, Stopped, Terminated
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.errors import RecordError, error_line
from horovod_study.measure import energy, environment, evidence, steady, system
from horovod_study.measure.clock import KernelStamps, LapClock, now, open_clock, utc_now
from horovod_study.measure.ranges import ranged
from horovod_study.measure.recorder import DRAIN_S, DRAIN_STEPS, Recorder
from horovod_study.recording.command import described, end_run, new_record, window_totals
from horovod_study.recording.rank import facts, turns
from horovod_study.studies import lease
from horovod_study.text.progress import say


class Session:
    """A run while it is recorded; see the head of this file for the order of use."""

    effective: Mapping[str, Any]  # what describe_ranks found, for the record
    doubts: list[str]  # what makes the run's times worth less, known before it trains
    directory: Path  # of the run, from `claim` on; the same on all ranks
    record: records.RunRecord  # from `create` on, as `rows`
    rows: Recorder
    clock: LapClock

    def __init__(self, workers: Backend, options: Any, *, liveness: Liveness | None = None) -> None:
        """Meet the other ranks and start the sampler; `liveness` sees which of them is lost.

        `options` has, as attributes, those of how a run is measured and filed.
        """
        self.workers, self.options, self.liveness = workers, options, liveness
        self.is_root = workers.rank == 0
        places = workers.gather((os.uname().nodename, environment.affinity()))
        self.hosts = [host for host, _ in places]
        self.host, self.cores = places[workers.rank]
        self.local_rank = self.hosts[: workers.rank].count(self.host)
        self.writer: records.StepWriter | None = None
        self.stretches: list[list[float]] = []  # begin and end of each stretch of timed steps, in seconds of the run
        self._opened: float | None = None  # when the present stretch began, if its steps are timed
        self._began: float | None = None  # when it began, timed or not
        self.window_s = self.trained_s = 0.0  # of timed steps so far; in stretches, timed or not
        self.turns: turns.Turns | None = None  # from `start` on, where the run trains in slices
        self._waits, self._waited_s = list[int](), 0.0  # steps before which it has waited for its turn
        self._host_cores = sorted({core for host, cores in places if host == self.host for core in cores})
        self._held = ExitStack()  # sampler, turns and, on rank 0, the claim on the run
        self._created = False  # whether run.json is that of this run
        sampled = options.system_interval_s and self.local_rank == 0  # by the first rank of each host
        self.sampler = system.Sampler(self.host) if sampled else None
        if self.sampler is not None:
            self._held.callback(self.sampler.close)
        self.watch_load()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Give everything back; where the run ended with `error`, write it into the record.

        Raises what explains the error better, where another rank is lost.
        """
        try:
            with suppress(RecordError, OSError):  # a full disk may be the error itself, and is the one to tell
                if self.writer is not None:
                    self.writer.close()
            if error is None:
                return
            explained = error if self.liveness is None else self.liveness.explain(error)
            if isinstance(error, Stopped):
                if self.is_root:
                    self._mark("stopped", str(error), error.totals)
                self.workers.barrier()
            elif isinstance(explained, LostPeer):
                if explained.speaks:
                    self._mark_failed(str(explained))
            elif self.is_root or not isinstance(error, Terminated | KeyboardInterrupt):
                self._mark_failed(error_line(error))
            if explained is not error:
                raise explained from None
        finally:
            self._held.close()

    def _mark_failed(self, reason: str) -> None:
        with suppress(RecordError, OSError):  # from any rank that sees it
            self._mark("failed", reason, {})

    def _mark(self, status: str, reason: str, totals: Mapping[str, Any]) -> None:
        if self._created and records.read_run(self.directory).status == "running":
            end_run(self.directory, status, totals, reason)

    # ------------------------------------------------------------------------------------- before the first step

    def watch_load(self) -> None:
        """Look from now on at what other programs take: what the run itself has started and ended is none of them."""
        self._load = evidence.OtherLoad(self._host_cores, beside=None if self.sampler is None else self.sampler.pid)

    def describe_ranks(
        self, device: torch.device, *, lr: float | None, settings: Mapping[str, Any], **more: Any
    ) -> None:
        """Learn what each rank really has, `more` of this one included, and what is to be doubted."""
        self.cores = environment.affinity()  # fewer than at first where the rank keeps near its GPU
        place = {"host": self.host, "local_rank": self.local_rank, "cores": self.cores, "device": device}
        ranks = self.workers.gather({**evidence.describe_rank(place, lr, settings), **more})
        # the cells that start beside it are no other programs; its slices tell of others
        load = None if turns.wanted() else self._load.sample(at_least_s=0.2 if self.workers.workers > 1 else 0.0)
        busy, holders = evidence.other_cores(self.workers.gather(load), ranks), evidence.gpu_holders(ranks)
        name = str(device) if device.type == "cpu" else torch.cuda.get_device_name(device)
        told, self.doubts = described(ranks, busy, holders, workers=len(ranks), lr=lr, device=name)
        same = self.options.timer_mode == "strict" and device.type == "cpu"
        note = "the same as light: a CPU has done its work when a call returns" if same else ""
        mode = {"value": self.options.timer_mode, "note": note}
        self.effective = {**told, "warmup_steps": self.options.warmup_steps, "timer_mode": mode}

    def claim(self, wanted: Path, *, again: bool = False, earlier: records.RunRecord | None = None) -> None:
        """Claim the run directory, that of rank 0, before anything is written there.

        `again` moves a run that has ended aside; `earlier` is the run that goes on.
        Raises StudyError, on all ranks, where there is a run, somebody else trains it, or has gone on with it.
        """
        self.directory = directory = Path(self.workers.gather(str(wanted.absolute()))[0])
        with fail_together(self.workers):
            if not self.is_root:
                return
            there = (directory / records.MANIFEST).exists()
            if again and earlier is None and there and records.read_run(directory).state() != "running":
                say(f"the earlier run is kept in {lease.move_run(directory, directory.parent / lease.ATTEMPTS)}")
            if earlier is None and lease.holder_of_run(directory) is None:
                records.require_no_run(directory, again="--again")  # before a claim is left in it
            self._held.callback(lease.hold_run(directory).give_back)
            if earlier is not None and records.read_run(directory) != earlier:
                raise RecordError(f"{directory}: somebody else has gone on with the run meanwhile; resume it again")

    def create(
        self,
        requested: Mapping[str, Any],
        effective: Mapping[str, Any],
        *,
        batch: int,
        earlier: records.RunRecord | None = None,
        from_step: int | None = None,
    ) -> None:
        """Write run.json and open the file of step rows; `earlier` goes on from step `from_step`."""
        asked, ran = {**requested, "workers": self.workers.workers}, {**self.effective, **effective}
        known = {"requested": asked, "effective": ran, "environment": environment.describe()}
        begun = (
            {"started": utc_now()} if earlier is None else {"started": earlier.started, "attempts": earlier.attempts}
        )
        process = {"host": self.hosts[0], "pid": self.effective["ranks"][0]["pid"]}  # rank 0 writes the record
        self.record = new_record(self.directory, vars(self.options), **begun, **process, **known)
        with fail_together(self.workers):
            if self.is_root and earlier is not None:
                self.record = records.resume_run(self.directory, self.record, from_step=from_step or 0, began=utc_now())
            elif self.is_root:
                records.create_run(self.directory, self.record, again="--again")
        self._created = True
        if self.liveness is not None:
            self.liveness.fail = self._mark_failed
        with fail_together(self.workers):
            self.writer = records.StepWriter(self.directory, self.workers.rank, resume_at=from_step)
        self.rows = Recorder(self.writer, batch, rank=self.workers.rank, disk_full=self.options.disk_full)
        if self.writer.kept is not None:
            self.rows.take_up(self.writer.kept)
            self.writer.kept = None  # they are in the file
        if self.sampler is not None:
            interval_s, resumed = self.options.system_interval_s, from_step is not None
            self.sampler.watch(self.directory, self.effective["ranks"], interval_s=interval_s, resumed=resumed)

    def start(self, device: torch.device, *, elapsed_s: float = 0.0) -> None:
        """Settle the zero of all times of the run, of which `elapsed_s` are over."""
        self.device = device
        self.rows.follow(device)
        if self.sampler is not None:
            self.sampler.wait_ready()
        joined = turns.connect(rank=self.workers.rank, workers=self.workers.workers)
        self.workers.barrier()
        # The ranks of a host read one clock, those of other hosts stood at the barrier.
        everybody = self.workers.gather((self.host, now(), joined is not None))
        self.zero: float = next(at for host, at, _ in everybody if host == self.host) - elapsed_s
        if joined is not None:
            self._held.callback(joined.leave)
            if all(there for _, _, there in everybody):
                self.turns = joined
            else:  # a rank that nobody grants steps would be waited for for ever
                joined.leave()
        if self.sampler is not None:
            self.sampler.begin(self.zero)

    def open_clock(
        self, laps: tuple[str, ...] = ORDINARY_LAPS, *, ranges: str = "off", stamps: KernelStamps | None = None
    ) -> None:
        """Make the clock of the steps; with `ranges` (nvtx, itt) their `laps` are ranges of a profiler, too.

        `stamps`: where the kernels of the steps write their times themselves.
        """
        clock = open_clock(self.options.timer_mode, self.device, zero=self.zero, stamps=stamps)
        self.clock = ranged(clock, ranges, laps)

    # ------------------------------------------------------------------------------------------------ the loop

    def open_stretch(self, *, timed: bool) -> None:
        """Begin a stretch of steps without interruption; what is between stretches belongs to no step."""
        self._began = now()
        self._opened = self._began if timed else None
        self.clock.start()

    @property
    def granted(self) -> float:
        """The number of steps after which this run is to wait; endless where it trains alone."""
        return math.inf if self.turns is None else self.turns.until

    def wait_for_turn(self, made: int, *, samples: int, enough: bool, least: int | None = None) -> turns.Said:
        """Wait, between two stretches, until steps beyond the `made` ones are granted; return how that ended.

        `samples` of this rank so far; `enough`: the run has made what it was asked for, which are `least` steps where
        that is known. Not collective.
        """
        if self.turns is None:
            return "go"
        began = now()
        warm = made >= self.options.warmup_steps
        said = self.turns.wait(made, samples, self.trained_s, warm=warm, enough=enough, least=least)
        self._waits.append(made)
        self._waited_s += now() - began
        if math.isinf(self.turns.until):  # it trains alone from here on
            self.turns = None
        return said

    def progress(self) -> dict[str, Any]:
        """Return what of the loop so far a run that goes on later has to `take_up`. Collective.

        The window is that of the slowest rank, which everybody takes up: one that began a stretch earlier than others
        has longer steps, and would sum them to more than its window.
        """
        waited = {"waits": list(self._waits), "waited_s": self._waited_s}
        return {"window_s": max(self.workers.gather(self.window_s)), "stretches": self.stretches, **waited}

    def take_up(self, progress: Mapping[str, Any]) -> None:
        """Go on from what `progress` returned earlier; checkpoints of older versions know their window alone."""
        self.window_s, self.stretches = progress["window_s"], progress.get("stretches", [])
        self._waits, self._waited_s = progress.get("waits", []), progress.get("waited_s", 0.0)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the timed window so far."""
        return self.window_s if self._opened is None else self.window_s + now() - self._opened

    def write_rows(self) -> None:
        """Write the rows of the steps that the device has made, if it is time to; it is not waited for."""
        if len(self.rows) >= DRAIN_STEPS or now() - self.rows.drained > DRAIN_S:
            self.rows.drain_made(self.clock)

    def close_stretch(self) -> None:
        """End a stretch when its work is done, and write its rows."""
        settle(self.device)
        closed = now()
        if self._began is not None:
            self.trained_s += closed - self._began
        if self._opened is not None:
            self.window_s += closed - self._opened
            self.stretches.append([self._opened - self.zero, closed - self.zero])
        self._began = self._opened = None
        if len(self.rows):
            self.rows.drain(self.clock)

    # ------------------------------------------------------------------------------------------- after the loop

    def stop_sampling(self) -> None:
        """End turns and samples: what follows is beside the training."""
        if self.turns is not None:
            self.turns.leave()
        if self.sampler is not None:
            self.sampler.stop()

    def find_steady(self, made: int, *, resumed: bool = False) -> steady.Steady:
        """Return the first step of the timed window of `made` steps, the same on all ranks, and say what to doubt.

        It is found in the step times of rank 0: workers that average their gradients wait for each other in every step.
        """
        why = ""
        lost = sum(self.workers.gather(self.rows.rows_lost))
        wanted = self.options.steady == "found"
        if wanted and not self.clock.takes_stamps:
            why = "steady steps cannot be found with timer_mode off: the window begins where it was declared"
        elif wanted and resumed:
            why = "a resumed run begins twice: its window begins where it was declared, not where it is found steady"
        elif wanted and lost:
            why = f"{lost:,} step rows were lost: the window begins where it was declared, not where it is steady"
        found = steady.declared(min(self.options.warmup_steps, made), why)
        with fail_together(self.workers):
            if self.is_root and wanted and not why:
                found = steady.find_steady(self.rows.timed("step_s"), found.declared)
        found = steady.Steady(**self.workers.gather(asdict(found))[0])
        if self.is_root and (why or (found.doubt and found.found_by != "declared")):
            say(f"{'note' if why else 'warning'}: {found.doubt}")
        return found

    def totals(self, first: steady.Steady, *, made: int, samples: int) -> dict[str, Any]:
        """Return the totals of the timed window, which begins at step `first`, after `made` steps of this rank.

        `samples` are those of this rank in the window.
        """
        stretches, cut_s = self.stretches, 0.0
        if first.step > first.declared:  # the laps tile the window: what it loses is the time of these steps
            cut_s = float(self.rows.timed("step_s")[first.declared : first.step].sum())
            stretches = energy.since(stretches, float(self.rows.timed("begin_s")[first.step]))
        mine = {"window_s": self.window_s - cut_s, "samples": samples, "steps": made, "memory": facts.memory_mb()}
        mine |= {"summary": self.rows.summary(first.step), "rows_lost": self.rows.rows_lost}
        mine["system"] = None if self.sampler is None else system.told(self.directory, self.sampler, stretches)
        everybody = self.workers.gather(mine)
        slowest_s, done = max(each["window_s"] for each in everybody), sum(each["samples"] for each in everybody)
        found = window_totals(everybody, first, done / slowest_s, slowest_s, (self._waits, self._waited_s))
        return found | system.totals([each["system"] for each in everybody], samples=done)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """Close the files and the record."""
        assert self.writer is not None
        with fail_together(self.workers):  # rank 0 takes digests of the files of all ranks
            self.writer.close()
        with fail_together(self.workers):
            if self.is_root:
                records.finish_run(self.directory, self.record, status="done", finished=utc_now(), totals=totals)
        self.workers.barrier()


def settle(device: torch.device) -> None:
    """Return when `device` has done what it was given; a CPU has when the call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
