"""Records the steps of somebody's own training loop, in three lines around it:

    with horovod_study.recorder(model, optimizer, out="runs/mine/2w") as record:     # 1
        for images, labels in record.steps(loader):                                 # 2
            loss = criterion(model(images), labels)
            record.lap("forward")                                                   # 3, where laps are wanted finer
            loss.backward()
            optimizer.step()

The run directory is the one of `horovod_study.train`, and so are its analysis and report. docs/your_script.md says what
is seen by hooks, and what is not: that is residual, never guessed.

Inside the loop nothing is printed, nothing gathered and the device not waited for; rows are written every few seconds.
Only entering and leaving are collective. What the training raises passes through unchanged.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import nn

from horovod_study import alive, lease, records
from horovod_study.comm import agreed, require_parity
from horovod_study.comm.attached import Attached, Waiting, attach, averages_in_backward, averages_in_synchronize, bare
from horovod_study.config import LAPS, OPTIONS, RunConfig, run_config
from horovod_study.errors import ConfigError, RecordError, StudyError, nearest
from horovod_study.measure import energy, environment, evidence, system
from horovod_study.measure.clock import DeviceStamps, LapClock, Unstamped, now, utc_now, utc_stamp
from horovod_study.measure.precision import PrecisionObserver
from horovod_study.measure.recorder import Recorder
from horovod_study.measure.steady import Steady, declared, find_steady
from horovod_study.progress import say
from horovod_study.roles import Role, named
from horovod_study.workload.model import parameter_count, parameter_sha256

T = TypeVar("T")

PRECISION_STEPS = 3
"""So many steps tell what a training computes in; layers are not watched after them."""
MAX_IRREGULAR = 0.05
"""Part of the steps whose updates may come otherwise, such as those that a loss scaler skips, without a doubt."""
MAX_TURNS = 100
"""After so many turns of a loop without an update from its beginning on, none is waited for any more."""
DRAIN_STEPS = 512
DRAIN_S = 2.0
"""After so many steps or so many seconds, whatever comes first, rows are written: what a killed run loses."""


def recorder(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    out: str | Path | None = None,
    batch: int | None = None,
    model_name: str | None = None,
    warmup_steps: int = 50,
    steady: str = "found",
    timer_mode: str = "light",
    system_interval_s: float = 1.0,
    disk_full: str = "go-on",
    study: str = "script",
    partition: str = "local",
    repeat: int = 0,
    forward_hooks: bool = True,
) -> "Recording":
    """Return what records the steps of a training loop; use it in a `with` statement, on every rank.

    Give the model and the optimizer that the loop uses, wrapped as they are (DistributedDataParallel, Horovod's
    DistributedOptimizer). `out` is the run directory (by default a new one below runs/), rank 0's for all ranks.
    `batch` is the samples of a step on one worker; without it they are counted, along the first dimension of what the
    loader gives. `model_name` is what tables and figures call the model, by default its class. Without
    `forward_hooks` the end of forward is what `record.lap("forward")` says. The other options are those of
    `horovod-study train`. Raises StudyError for an option that is not valid.
    """
    return Recording(
        model,
        optimizer,
        out=None if out is None else Path(out),
        config=run_config(
            {
                "warmup_steps": warmup_steps,
                "steady": steady,
                "timer_mode": timer_mode,
                "system_interval_s": system_interval_s,
                "disk_full": disk_full,
                "study": study,
                "partition": partition,
                "repeat": repeat,
                **({} if batch is None else {"batch": batch}),
            },
            source="recorder",
        ),
        batch=batch,
        model_name=model_name,
        forward_hooks=forward_hooks,
    )


class Recording:
    """The steps of one training loop while they are recorded: what `recorder` returns."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        out: Path | None,
        config: RunConfig,
        batch: int | None,
        model_name: str | None,
        forward_hooks: bool,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"recorder: model is a {type(model).__name__}; give the torch.nn.Module that is trained")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"recorder: optimizer is a {type(optimizer).__name__}; give the torch.optim.Optimizer that is stepped"
            )
        self._model, self._optimizer, self._out, self._config, self._batch = model, optimizer, out, config, batch
        self._model_name = model_name or type(bare(model)).__name__
        self._forward_hooks = forward_hooks
        self._state = "new"  # -> open -> closed
        self._in_step = self._updated = False
        self._step, self._epoch = 0, -1
        self._samples: int | None = None  # of the step so far
        self._loss: torch.Tensor | None = None
        self._train_samples: int | None = None
        self._window_s, self._window_samples, self._pending_samples = 0.0, 0, 0
        self._opened: float | None = None  # when the present stretch of timed steps began
        self._stretches: list[list[float]] = []  # begin and end of each, in seconds of the run
        self._hooks: _Hooks | None = None
        self._update_hook: Any = None
        self._accumulate = 1
        self._turns = 0  # of the loop, in the step so far
        self._turns_of_steps: Counter[int] = Counter()  # turns -> steps that took so many; 0 turns: without an update
        self._turns_left = 0  # in steps that ended without an update, and do not count
        self._by_turns = False  # no update was ever seen: a step is a turn
        self._sampler: system.Sampler | None = None
        self._held = ExitStack()  # the claim on the run, on rank 0

    # ------------------------------------------------------------------------------------------ beginning and end

    @property
    def workers(self) -> int:
        """The number of workers; known inside the `with` statement."""
        return self._peers.workers

    @property
    def in_step(self) -> bool:
        """Whether a step is under way."""
        return self._in_step

    @property
    def updated(self) -> bool:
        """Whether the optimizer has stepped in the step that is under way."""
        return self._updated

    def mark(self) -> Any:
        """Return a stamp of this moment, for `begin` and `fetched`."""
        return self._clock.mark()

    def note_update(self) -> None:
        """Note that the parameters were updated: the step counts, however the loop is left."""
        self._updated = True

    @property
    def directory(self) -> Path:
        """The run directory, the same on all ranks; known from the beginning of the `with` statement on."""
        if self._state == "new":
            self._require_open("directory")
        return self._directory

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StudyError(
                "recorder: was used already; a recorder records one run, make another one with another out="
            )
        self._state = "closed"  # until it is open
        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        self._peers = attach(self._model, self._optimizer, on_gpu=device.type == "cuda")
        with Waiting("every rank must enter `with horovod_study.recorder(...)`"):
            places = self._peers.gather((os.uname().nodename, environment.affinity()))
        hosts = [host for host, _ in places]
        host = hosts[self._peers.rank]
        if self._config.system_interval_s and hosts.index(host) == self._peers.rank:  # the first rank of each host
            self._sampler = system.Sampler(host)
        try:
            self._record = self._describe(places, device)
            self._directory = Path(self._record.requested["out"])
            with agreed(self._peers):
                if self._peers.rank == 0:
                    self._held.callback(lease.hold_run(self._directory).give_back)
                    _create(self._directory, self._record)
        except BaseException:
            self._held.close()
            if self._sampler is not None:
                self._sampler.close()
            raise
        try:
            self._open(host, device)
        except BaseException as error:
            self._fail(error)
            raise
        self._state = "open"
        if self._peers.rank == 0:
            say(_greeting(self._record.effective, self._peers, self._directory))
        return self

    def _open(self, host: str, device: torch.device) -> None:
        """Open the files, the clock and the hooks. Collective."""
        config, peers = self._config, self._peers
        with agreed(peers):
            self._writer = records.StepWriter(self._directory, peers.rank)
        self._recorder = Recorder(self._writer, self._batch or 0, rank=peers.rank, disk_full=config.disk_full)
        if self._sampler is not None:
            ranks = self._record.effective["ranks"]
            self._sampler.watch_ranks(self._directory, ranks, interval_s=config.system_interval_s, resumed=False)
            self._sampler.wait_ready()
        peers.barrier()
        # One zero for all times of the run: the ranks of a host read one clock, those of others stood at the barrier.
        everybody = peers.gather((host, now()))
        self._zero = next(at for where, at in everybody if where == host)
        if self._sampler is not None:
            self._sampler.begin(self._zero)
        self._clock = _clock(config.timer_mode, device, zero=self._zero)
        self._precision = PrecisionObserver(self._model)
        if self._clock.takes_stamps:
            self._hooks = _Hooks(self, self._clock, self._model, self._optimizer, self._forward_hooks)
        else:
            self._update_hook = self._optimizer.register_step_post_hook(lambda *_: self.note_update())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._state != "open":
            return
        self._state = "closed"
        self._precision.stop()
        if self._hooks is not None:
            self._hooks.remove()
        if self._update_hook is not None:
            self._update_hook.remove()
        if error is not None:
            self._fail(error)
            return
        try:
            with Waiting("every rank must leave the recorder; one that still trains makes more steps than this one"):
                totals = self._finish()
        except BaseException as own:
            self._fail(own)
            raise
        self._hooks = None  # and with it the model, which may hold a process group that is to be destroyed before it
        if self._peers.rank == 0:
            say(_closing(totals, self._peers.workers, self._directory))

    def _describe(self, places: Sequence[tuple[str, list[int]]], device: torch.device) -> records.RunRecord:
        """Return what runs, before its first step, and settle where it is written. Collective."""
        peers, config, model = self._peers, self._config, bare(self._model)
        hosts = [host for host, _ in places]
        initial = parameter_sha256(model)
        asked = {name: getattr(config, name) for name in _OPTIONS} | {"batch": self._batch}
        require_parity(
            peers,
            {
                **asked,
                "model": self._model_name,
                "backend": peers.backend,
                "reduction": peers.reduction,
                "parameters": parameter_count(model),
                "package version": environment.describe_package(),
            },
        )
        if len(set(peers.gather(initial))) > 1 and peers.rank == 0:
            say(
                "warning: the ranks begin with different parameters; broadcast those of rank 0 before the recorder "
                "(Horovod: broadcast_parameters), or they train different models"
            )
        default = f"{utc_stamp()}-{peers.backend}-{peers.workers}w-{os.getpid()}"
        wanted = self._out or Path("runs") / config.study / default
        directory = Path(peers.gather(str(wanted.absolute()))[0])
        ranks = peers.gather(
            evidence.describe_rank(
                host=hosts[peers.rank],
                local_rank=hosts[: peers.rank].count(hosts[peers.rank]),
                cores=places[peers.rank][1],
                device=device,
                lr=float(self._optimizer.param_groups[0]["lr"]),
                settings={},
            )
        )
        crowded = evidence.crowded(ranks)
        if crowded and peers.rank == 0:
            say(f"warning: {crowded.replace('--threads 1', 'torch.set_num_threads(1)')}")
        return records.RunRecord(
            study=config.study,
            key=directory.name,
            repeat=config.repeat,
            partition=config.partition,
            status="running",
            started=utc_now(),
            host=hosts[0],
            pid=peers.gather(os.getpid())[0],
            process=alive.identity(),  # rank 0 writes the record
            requested={**asked, "out": str(directory), "workers": peers.workers, "script": sys.argv[0]},
            effective={
                "model": self._model_name,
                "backend": peers.backend,
                "transport": peers.transport,
                "reduction": peers.reduction,
                "launcher": peers.launcher,
                "workers": peers.workers,
                "nodes": len(set(hosts)),
                "batch": self._batch,
                "global_batch": None if self._batch is None else self._batch * peers.workers,
                "lr": float(self._optimizer.param_groups[0]["lr"]),
                "optimizer": type(self._optimizer).__name__,
                "precision": None,  # seen in the first steps
                "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
                "parameters": parameter_count(model),
                "initial_parameter_sha256": initial,
                "train_samples": None,
                "warmup_steps": config.warmup_steps,
                "timer_mode": {"value": config.timer_mode, "note": ""},
                "ranks_per_host": evidence.ranks_per_host(ranks),
                "shared_cores": crowded is not None,
                "ranks": ranks,
            },
            environment=environment.describe(),
        )

    def _finish(self) -> dict[str, Any]:
        """Close the files and the record, and return the totals. Collective."""
        if self._sampler is not None:
            self._sampler.stop()
        with agreed(self._peers):
            self.close_step()
            self._writer.close()
            self._require_steps()
        totals, learnt = self._totals()
        with agreed(self._peers):
            if self._peers.rank == 0:
                record = replace(self._record, effective={**self._record.effective, **learnt})
                records.finish_run(self._directory, record, status="done", finished=utc_now(), totals=totals)
        self._peers.barrier()
        self._held.close()
        return totals

    def _require_steps(self) -> None:
        if self._step == 0:
            raise StudyError(
                f"{self._directory}: not a single step was recorded"
                + (
                    f": the optimizer did not step in {self._turns_left:,} turns; give the one that is stepped, or "
                    "mark updates of your own with record.lap('update')"
                    if self._turns_left
                    else "; loop over record.steps(loader), not over the loader itself"
                )
            )
        if self._step <= self._config.warmup_steps:
            raise StudyError(
                f"{self._directory}: all {self._step} steps belong to the warm-up of {self._config.warmup_steps}, and "
                f"none is left to measure; make more steps, or set warmup_steps= below {self._step}"
            )

    def _totals(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the totals of the timed window as train.py has them, and what only now is known of what ran."""
        peers = self._peers
        steady = self._steady()
        first = steady.step
        summary = self._recorder.summary(first)
        numbers, samples = self._recorder.timed("step"), self._recorder.timed("samples")
        inside = numbers >= first
        step_s = self._recorder.timed("step_s")[inside]
        whole = self._recorder.rows_lost == 0 and bool(np.isfinite(step_s).all())
        stretches = self._stretches
        if first > steady.declared:
            stretches = energy.since(stretches, float(self._recorder.timed("begin_s")[first]))
        sampled = None if self._sampler is None else system.told(self._directory, self._sampler, stretches)
        everybody = peers.gather(
            {
                "summary": summary,
                "steps": self._step,
                # Laps tile the steps and steps tile a stretch: with all rows there, they are the window.
                "window_s": float(step_s.sum()) if whole else self._window_s,
                "samples": int(samples[inside].sum()) if whole else self._window_samples,
                "usual": int(np.median(samples)) if len(samples) else self._batch,
                "rows_lost": self._recorder.rows_lost,
                "memory": (environment.peak_rss_mb(), environment.pss_mb()),
                "sha256": parameter_sha256(bare(self._model)),
                "precision": self._precision.found(),
                "turns": self._turns_of_steps,
                "train_samples": self._train_samples,
                "system": sampled,
            }
        )
        summaries = [each["summary"] for each in everybody]
        made = [each["steps"] for each in everybody]
        hashes = {each["sha256"] for each in everybody}
        if peers.rank == 0:
            if len(set(made)) > 1:
                say(f"warning: the ranks made {min(made)} to {max(made)} steps; shares and sums of them are not equal")
            if len(hashes) > 1:
                say(
                    "warning: the ranks end with different parameters: they have trained different models, and their "
                    "gradients were not averaged alike"
                )
        window_s = max(each["window_s"] for each in everybody)
        done = sum(each["samples"] for each in everybody)
        totals = {
            "samples_per_s": done / window_s,
            "window_s": window_s,
            "steps": min(made) - first,
            "excluded_steps": first,
            "steady": steady.to_dict(),
            **records.step_totals(summaries),
            "epochs": self._epoch + 1,
            **dict.fromkeys(("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "target_reached")),
            "train_s": window_s,
            "wall_s": now() - self._zero,
            "rss_mb_max": max(each["memory"][0] for each in everybody),
            "pss_mb_max": records.max_over_ranks([each["memory"][1] for each in everybody]),
            **system.totals([each["system"] for each in everybody], samples=done),
            "parameter_sha256": hashes.pop() if len(hashes) == 1 else None,
            "rows_lost": [each["rows_lost"] for each in everybody],
        }
        turns = _turns_per_update([each["turns"] for each in everybody])
        if peers.rank == 0 and turns not in (None, self._accumulate):
            say(f"note: the optimizer stepped every {turns} turns of the loop: steps are counted by updates")
        usual = [each["usual"] for each in everybody]
        learnt: dict[str, Any] = {
            "batch": round(sum(usual) / len(usual)),
            "global_batch": sum(usual),
            "train_samples": everybody[0]["train_samples"],
            "precision": _agreed({each["precision"] for each in everybody}),
            "turns_per_update": turns,
        }
        return totals, learnt

    def _steady(self) -> Steady:
        """Return where the timed window begins, found in the step times of rank 0, for all ranks. Collective."""
        asked = self._config.warmup_steps
        lost = sum(self._peers.gather(self._recorder.rows_lost))
        if self._config.steady == "declared":
            found = declared(asked)
        elif not self._clock.takes_stamps:
            found = declared(asked, "without laps nothing steady can be found: the window begins where it was declared")
        elif lost:
            found = declared(asked, f"{lost:,} step rows were lost: the window begins where it was declared")
        else:
            found = find_steady(self._recorder.timed("step_s"), asked)
        doubts = (found.doubt, _update_doubt(self._turns_of_steps))
        found = replace(found, doubt="; ".join(each for each in doubts if each))
        found = Steady(**self._peers.gather(found.to_dict())[0])
        if self._peers.rank == 0 and found.doubt:
            say(f"note: {found.doubt}")
        return found

    def _fail(self, error: BaseException) -> None:
        """Write what is there and why the run ended, from the rank that sees it; the others may be gone."""
        with suppress(Exception):  # it may be what has failed, and is not the error to tell
            self.close_step()
            self._writer.close()
        if self._sampler is not None:
            self._sampler.close()
        with suppress(RecordError):
            record = records.read_run(self._directory)
            if record.status == "running":
                who = f"rank {self._peers.rank}: " if self._peers.workers > 1 else ""
                text = " ".join(str(error).split())
                name = "" if isinstance(error, StudyError) and text else type(error).__name__
                reason = f"{who}{name}{': ' if name and text else ''}{text}"
                records.finish_run(
                    self._directory, record, status="failed", finished=utc_now(), totals={}, reason=reason
                )
        self._held.close()

    # ------------------------------------------------------------------------------------------ the loop

    def steps(self, loader: Iterable[T], *, accumulate: int = 1) -> Iterator[T]:
        """Yield what `loader` gives; a step ends with the turn in which the optimizer steps.

        Call it once for each epoch. The wait for the loader is the data lap. Where the gradients of several batches
        are added up before one update, so many turns make one step, without a word; `accumulate` says how many
        turns `batch=` was given for. A turn that is left by `break` counts when its optimizer has stepped.
        """
        self._require_open("steps")
        if accumulate < 1:
            raise ConfigError(f"record.steps: accumulate is {accumulate}; it must be at least 1, the turns of a step")
        data: Any = getattr(loader, "dataset", None)
        if self._train_samples is None and hasattr(data, "__len__"):
            self._train_samples = len(data)
        self._accumulate = accumulate
        self.begin_epoch()
        return self._over(loader, accumulate)

    def _over(self, loader: Iterable[T], accumulate: int) -> Iterator[T]:
        try:
            began = self._clock.mark()
            batches = iter(loader)  # workers that it starts are waited for: that is data, too
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                if not self._in_step:  # at first, after an update, or after `skip`
                    self.begin(at=began)
                self.fetched(batch, begun=began if self._turns else None)
                yield batch
                self._turn(accumulate)
                began = self._clock.mark()
        finally:
            # After the last turn; or after `break`, or an error, in the middle of one.
            if self._state == "open":
                self.close_step()

    def _turn(self, accumulate: int) -> None:
        """End a turn of the loop, and with it the step where the parameters were updated."""
        if not self._in_step:
            return
        self._turns += 1
        if self._updated or (self._by_turns and self._turns >= accumulate):
            if self._batch is not None and self._turns != accumulate:
                self._samples = round(self._batch * self._turns / accumulate)
            self.end()
        elif self._turns >= MAX_TURNS and not self._turns_of_steps:
            # Nobody will see an update here, such as in a loop that changes its parameters by itself.
            self._by_turns, self._in_step = True, False
            self._clock.forget()

    def begin_epoch(self) -> None:
        """Begin an epoch, and a stretch of steps: what lies before it is in none. `steps` does so by itself."""
        self._require_open("begin_epoch")
        self.close_step()
        self._epoch += 1
        self._open_stretch()

    def begin(self, at: Any = None) -> None:
        """Begin a step, which waits for its data from now on: for loops that cannot go over `steps`."""
        self._clock.begin(at)
        self._in_step, self._updated, self._samples, self._loss = True, False, None, None
        self._turns = 0
        if self._hooks is not None:
            self._hooks.reset()

    def fetched(self, batch: Any, *, begun: Any = None) -> None:
        """End the wait for `batch`, which counts as data; `begun` is the stamp at which it began, if not just now."""
        if begun is not None:
            self._settle()
            self._clock.lap("residual", at=begun)
        self._clock.lap("data")
        if self._batch is None:
            self._samples = (self._samples or 0) + _samples_of(batch)

    def end(self) -> None:
        """End a step; what follows until the next one begins is residual of that one."""
        if not self._in_step:
            return
        self._settle()
        self._in_step = False
        self._recorder.add(self._step, self._epoch, self._loss, samples=self._samples)
        self._pending_samples += self._samples or self._batch or 0
        self._step += 1
        self._turns_of_steps[max(1, self._turns) if self._updated else 0] += 1
        if self._precision.watching and self._step >= PRECISION_STEPS:
            self._precision.stop()
        due = len(self._recorder) >= DRAIN_STEPS or now() - self._recorder.drained > DRAIN_S
        if self._step == self._config.warmup_steps:
            self._opened = now()
        if due or self._step == self._config.warmup_steps:
            self._drain()

    def close_step(self) -> None:
        """End a step that is open: it counts if its optimizer has stepped, otherwise it is forgotten."""
        if self._in_step and self._updated:
            self.end()
        elif self._in_step:
            self._turns_left += self._turns
            self._in_step = False
            self._clock.forget()
        self._drain()
        self._close_stretch()

    def _open_stretch(self) -> None:
        self._clock.start()
        self._opened = now()

    def _close_stretch(self) -> None:
        """Note when steps of the window were made, for what is sampled beside them."""
        if self._opened is not None and self._step > self._config.warmup_steps:
            self._stretches.append([self._opened - self._zero, now() - self._zero])
        self._opened = None

    def _drain(self) -> None:
        """Write the rows of the steps so far."""
        if not len(self._recorder):
            return
        self._recorder.drain(self._clock)
        if self._step > self._config.warmup_steps:
            self._window_s += self._clock.span_s
            self._window_samples += self._pending_samples
        self._pending_samples = 0

    def _settle(self) -> None:
        if self._hooks is not None:
            self._hooks.settle()

    def lap(self, name: str) -> None:
        """End the phase `name` of the step: data, forward, backward, sync, update; it began with the lap before it.

        Where one CUDA graph holds forward and backward, the phase is called compute, as in steps captured by `train`.
        What hooks have seen of the step stays; a lap of the same name that comes again is added.
        """
        if name not in LAPS:
            raise ConfigError(f"record.lap: unknown lap {name!r}{nearest(name, LAPS)}; allowed: {', '.join(LAPS)}")
        self._require_open(f"lap({name!r})")
        if not self._in_step:
            raise StudyError(
                f"record.lap({name!r}): outside a step; mark laps inside `for ... in record.steps(loader)`, and before "
                "record.skip()"
            )
        self._settle()
        self._clock.lap(name)
        self._updated |= name == "update"

    def loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of this step, shape (), for its row; it is read later, and the device not waited for."""
        if not self._in_step:
            raise StudyError("record.loss: outside a step; call it inside `for ... in record.steps(loader)`")
        self._loss = loss.detach().reshape(())

    @contextmanager
    def skip(self) -> Iterator[None]:
        """Leave out what is done inside, such as an evaluation: it belongs to no step and not to the timed window.

        Inside the loop it stands at the end of a turn, because it ends the step.
        """
        self._require_open("skip")
        if self._in_step:
            self._settle()
            self._clock.lap("residual")
            self.end()
        self.close_step()
        try:
            yield
        finally:
            self._open_stretch()

    def _require_open(self, what: str) -> None:
        if self._state != "open":
            raise StudyError(
                f"record.{what}: the recorder is not open; use it inside `with horovod_study.recorder(...)`"
            )


class _Hooks:
    """Marks the laps of a step from public hooks of the model, its parameters and the optimizer.

    residual    until the model's forward begins; between the end of backward and the optimizer's step
    forward     until the model's forward has returned
    backward    until autograd is done; for a model that averages in backward, until this rank's last gradient is made
    sync        the wait inside backward after that moment; or inside the `synchronize` of Horovod's optimizer
    update      the optimizer's step, but for what of the above happens inside it

    Autograd tells its end through its engine's `queue_callback`, which is not public but what PyTorch's own data
    parallelism uses. Where a version should have none, the end of a wait inside backward is the next lap.
    """

    def __init__(
        self, record: Recording, clock: LapClock, model: nn.Module, optimizer: torch.optim.Optimizer, forward: bool
    ) -> None:
        self._record, self._clock, self._model, self._optimizer = record, clock, model, optimizer
        engine = getattr(torch.autograd.Variable, "_execution_engine", None)
        self._when_done: Callable[[Callable[[], None]], None] | None = getattr(engine, "queue_callback", None)
        self._forwards: list[bool] = []  # the forwards under way, and whether each is the outermost of a step
        self._expected = 0  # gradients of the backward before
        self.reset()
        # One worker that wraps nothing waits for nobody: that is known, and no gap in the rows.
        self._alone = record.workers == 1 and not averages_in_synchronize(optimizer) and bare(model) is model
        self._handles: list[Any] = []
        if forward:
            self._handles.append(model.register_forward_pre_hook(self._before_forward))
            self._handles.append(model.register_forward_hook(self._after_forward, always_call=True))
        for parameter in model.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(self._gradient)  # type: ignore[no-untyped-call]
                self._handles.append(handle)
        self._handles.append(optimizer.register_step_pre_hook(self._before_update))
        self._handles.append(optimizer.register_step_post_hook(self._after_update))
        if averages_in_synchronize(optimizer):
            self._wrap_synchronize(optimizer)

    def reset(self) -> None:
        """Forget what a step before has left half done, such as a backward that was out of memory."""
        self._gradients, self._last, self._queued, self._updates = 0, None, False, 0
        del self._forwards[:]

    def remove(self) -> None:
        """Take all hooks away; the model and the optimizer are as they were."""
        for handle in self._handles:
            handle.remove()

    def settle(self) -> None:
        """Give a backward its laps whose end autograd did not tell."""
        if self._gradients:
            self._end_backward(tell=False)

    def _rest(self, at: Any = None) -> None:
        """Close what lies since the stamp before: between the hooks nobody knows what the script did."""
        self._clock.lap("update" if self._updates else "residual", at=at)

    def _before_forward(self, *_: Any) -> None:
        counts = self._record.in_step and not self._forwards and torch.is_grad_enabled()
        self._forwards.append(counts)
        if counts:
            self.settle()
            self._rest()

    def _after_forward(self, *_: Any) -> None:
        if self._forwards and self._forwards.pop() and self._record.in_step:
            self._clock.lap("forward")

    def _gradient(self, _: torch.Tensor) -> None:
        if not self._record.in_step:
            return
        self._gradients += 1
        if not self._queued and self._when_done is not None:
            self._queued = True
            self._when_done(self._gradients_made)
        # A stamp costs on a GPU: it is left out where as many gradients as in the backward before are still to come.
        if self._gradients >= self._expected:
            self._last = self._clock.mark()

    def _gradients_made(self) -> None:
        """Autograd has made all gradients; of those that it calls at its end, this one came first."""
        self._queued = False
        if self._gradients and self._record.in_step:
            self._end_backward(tell=True)

    def _end_backward(self, *, tell: bool) -> None:
        last = self._last if self._gradients >= self._expected else None
        self._expected, self._gradients, self._last = self._gradients, 0, None
        if not averages_in_backward(self._model):
            self._clock.lap("backward", at=None if tell else last)
            return
        self._clock.lap("backward", at=last)
        if tell and self._when_done is not None:
            self._when_done(self._averaged)  # behind what the model itself does at the end
        else:
            self._averaged()

    def _averaged(self) -> None:
        self._clock.lap("sync")

    def _before_update(self, *_: Any) -> None:
        if self._record.in_step:
            self.settle()
            began = self._clock.mark()
            self._rest(began)
            if self._alone and not self._updates:
                self._clock.lap("sync", at=began)
        self._updates += 1

    def _after_update(self, *_: Any) -> None:
        self._updates = max(0, self._updates - 1)
        if self._record.in_step:
            self._clock.lap("update")
            self._record.note_update()

    def _wrap_synchronize(self, optimizer: Any) -> None:
        """Put a lap around `synchronize` of this one optimizer, which its step calls, or the script."""
        original = optimizer.synchronize

        def synchronize(*arguments: Any, **named: Any) -> Any:
            if not self._record.in_step:
                return original(*arguments, **named)
            self.settle()
            self._clock.lap("residual")
            try:
                return original(*arguments, **named)
            finally:
                self._clock.lap("sync")

        optimizer.synchronize = synchronize
        self._handles.append(_Restore(optimizer, "synchronize", original))


class _Restore:
    """Takes the place of a method of one object back."""

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self._owner, self._name, self._original = owner, name, original

    def remove(self) -> None:
        """Let the method of its class show again, or the one that the object had itself."""
        delattr(self._owner, self._name)
        if getattr(self._owner, self._name, None) != self._original:
            setattr(self._owner, self._name, self._original)


_OPTIONS = named(OPTIONS, Role.WINDOW | Role.CLOCK | Role.NAMING)


def _create(directory: Path, record: records.RunRecord) -> None:
    try:
        records.create_run(directory, record)
    except RecordError as error:
        raise RecordError(str(error).replace("--out", "out=")) from None


def _clock(timer_mode: str, device: torch.device, *, zero: float) -> LapClock:
    """Return what times the steps as `timer_mode` says; times count from `zero`."""
    if timer_mode == "off":
        return Unstamped()
    if device.type != "cuda":
        return LapClock(zero=zero)

    def settle() -> None:
        torch.cuda.current_stream(device).synchronize()

    return LapClock(device=DeviceStamps(), settle=settle if timer_mode == "strict" else None, zero=zero)


def _samples_of(batch: Any) -> int:
    """Return the first dimension of the first tensor or array in what a loader gave."""
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for part in batch:
            with suppress(ConfigError):
                return _samples_of(part)
    elif getattr(batch, "shape", ()):
        return int(batch.shape[0])
    raise ConfigError(
        f"recorder: how many samples a {type(batch).__name__} from the loader holds cannot be seen; give batch="
    )


def _agreed(values: set[str | None]) -> str | None:
    return values.pop() if len(values) == 1 else None


def _turns_per_update(turns: Sequence[Mapping[int, int]]) -> int | None:
    """Return how many turns of the loop a step usually has, over all ranks; None where no update was seen."""
    made: Counter[int] = sum((Counter(each) for each in turns), Counter())
    return next((count for count, _ in made.most_common() if count), None)


def _update_doubt(turns: Mapping[int, int]) -> str:
    """Return what to doubt of steps as updates, "" for nothing; `turns`: turns -> steps that took so many."""
    steps, usual = sum(turns.values()), _turns_per_update([turns])
    without, other = turns.get(0, 0), sum(count for made, count in turns.items() if made not in (0, usual))
    if without > MAX_IRREGULAR * steps:
        return f"{without:,} of {steps:,} steps made no update that was seen: they are turns of the loop"
    if other > MAX_IRREGULAR * steps:
        return f"{other:,} of {steps:,} steps took another number of turns than {usual}: updates come irregularly"
    return ""


def _greeting(effective: Mapping[str, Any], peers: Attached, directory: Path) -> str:
    way = f"{peers.backend} over {peers.transport}" if peers.workers > 1 else peers.backend
    unseen = (
        "" if peers.sync_seen else "; its waits for other workers are seen only where record.lap('sync') marks them"
    )
    return (
        f"recording {peers.workers} worker{'s' * (peers.workers > 1)} ({way}), {effective['model']} with "
        f"{effective['parameters']:,} parameters, into {os.path.relpath(directory)}{unseen}"
    )


def _closing(totals: Mapping[str, Any], workers: int, directory: Path) -> str:
    step = totals["step_s_median"]
    return (
        f"recorded {totals['steps']:,} steps after {totals['excluded_steps']:,} of warm-up: "
        f"{totals['samples_per_s']:,.0f} samples/s with {workers} worker{'s' * (workers > 1)}"
        + (f", step {step * 1e3:.2f} ms (median)" if step is not None else "")
        + f"; horovod-study analyze {os.path.relpath(directory)} --out {os.path.relpath(directory)}-analysis"
    )
