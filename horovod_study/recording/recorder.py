"""Records the steps of somebody's own training loop, in three lines around it:

    with horovod_study.recorder(model, optimizer, out="runs/mine/2w") as record:     # 1
        for images, labels in record.steps(loader):                                 # 2
            loss = criterion(model(images), labels)
            record.lap("forward")                                                   # 3, where laps are wanted finer
            loss.backward()
            optimizer.step()

What happens is noted as by `horovod-study record -- COMMAND` (rank/watch.py), and becomes the same run directory; here
the script says where its loops are. docs/your_script.md says what is seen by hooks, and what is not: that is residual,
never guessed.

Inside the loop nothing is printed, nothing gathered and the device not waited for. Only entering and leaving are
collective, through the library that the script has started. What the training raises passes through unchanged.
"""

import functools
import os
import shutil
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import nn

from horovod_study import records
from horovod_study.comm import detect, fail_together, require_parity
from horovod_study.comm.launch import LAUNCH_VARIABLES
from horovod_study.config import LAPS
from horovod_study.errors import BackendError, ConfigError, StudyError, nearest
from horovod_study.files import unfinished, writing
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import now, utc_now, utc_stamp
from horovod_study.progress import say
from horovod_study.recording.rank import facts, turns, watch
from horovod_study.recording.session import RecordOptions
from horovod_study.recording.steps import MOST_TURNS
from horovod_study.recording.trainings import Run, processes_in, trainings_of
from horovod_study.text.words import plural

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

PATIENCE_S = 30.0
"""After so long somebody who waits for other ranks to enter or leave is told what for."""
_LOSSES = 512
"""So many losses of a GPU are kept one by one."""
_CLOSING = "closing"


def _in_loop(method: Method) -> Method:
    """Return a method for the loop: an error of the recorder's own ends the recording, and it then does nothing.

    Wrong use is a StudyError, and is raised.
    """

    @functools.wraps(method)
    def safe(self: "Recording", *given: Any, **named: Any) -> Any:
        try:
            return None if self._is_over() else method(self, *given, **named)
        except StudyError:
            raise
        except Exception as error:
            self._watcher.give_up(error)
            return None

    return cast(Method, safe)


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
    options: Mapping[str, Any] | None = None,
) -> "Recording":
    """Return what records the steps of a training loop; use it in a `with` statement, on every rank.

    Give the model and the optimizer that the loop uses, wrapped as they are (DistributedDataParallel, Horovod's
    DistributedOptimizer). `out` is the run directory (by default a new one below runs/), rank 0's for all ranks, which
    all of them must see. `batch` is the samples of a step on one worker; without it they are counted, along the first
    dimension of what the loader gives. `model_name` is what tables and figures call the model, by default its class.
    Without `forward_hooks` the end of forward is what `record.lap("forward")` says. `options` are the script's own in
    which its runs may differ, numbers and texts: runs are repeats of each other only where these are equal. The other
    options are those of `horovod-study strain train`. Raises StudyError for an option that is not valid.
    """
    measured = {
        "warmup_steps": warmup_steps,
        "steady": steady,
        "timer_mode": timer_mode,
        "system_interval_s": system_interval_s,
        "disk_full": disk_full,
        "study": study,
        "partition": partition,
        "repeat": repeat,
    }
    read = RecordOptions.read({**measured, **({} if batch is None else {"batch": batch})}, source="recorder")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"recorder: model is a {type(model).__name__}; give the torch.nn.Module that is trained")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"recorder: optimizer is a {type(optimizer).__name__}; give the torch.optim.Optimizer that is stepped"
        )
    about = {"batch": batch, "model_name": model_name, "own": options or {}}
    path = None if out is None else Path(out)
    return Recording(model, _inner(optimizer), out=path, options=read, about=about, forward_hooks=forward_hooks)


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """The workers of somebody's script."""

    rank: int
    workers: int
    gather: Callable[[Any], list[Any]]  # of small, plain values, in the order of ranks, on every rank


class Recording:
    """The steps of one training loop while they are recorded: what `recorder` returns."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        out: Path | None,
        options: RecordOptions,
        about: Mapping[str, Any],
        forward_hooks: bool,
    ) -> None:
        """`about`: what else the record says: batch, model_name and own, the options of the script."""
        self._model, self._optimizer = model, optimizer
        self._out, self._options, self._about = out, options, about
        self._forward_hooks = forward_hooks
        self._state = "new"  # -> open -> closed
        self.in_step = False  # whether there is a batch to train on
        self._turns = 0  # of all loops
        self._counted = False  # whether samples were ever counted
        self._losses = array("d")  # pairs of a moment and the loss
        self._on_device: list[torch.Tensor] = []  # losses that are not read yet, each behind a NaN in `_losses`
        self._run: Run | None = None  # on rank 0
        self._watcher = watch.Watcher({})

    # ------------------------------------------------------------------------------------------ beginning and end

    @property
    def workers(self) -> int:
        """The number of workers; known inside the `with` statement."""
        return self._ranks.workers

    @property
    def directory(self) -> Path:
        """The run directory, the same on all ranks; known from the beginning of the `with` statement on."""
        if self._state == "new":
            self._require_open("directory")
        return self._directory

    @property
    def ended(self) -> bool:
        """Whether whoever gives turns wants no more steps."""
        return self._watcher.ended

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StudyError(
                "recorder: was used already; a recorder records one run, make another one with another out="
            )
        self._state, self._pid, self._held = "closed", os.getpid(), ExitStack()  # until it is open
        self._library = facts.workers_of([self._model], self._optimizer, on_gpu=self._on_gpu())
        self._ranks = _Ranks(
            rank=self._library["rank"],
            workers=self._library["workers"],
            gather=_gather(self._library["backend"], self._model),
        )
        with _waiting("every rank must enter `with horovod_study.recorder(...)`"):
            self._ranks.gather(None)
        with self._held:
            try:
                self._meet()
                self._begin()
            except StudyError as error:
                raise StudyError(str(error).replace("--out", "out=")) from None
            self._held = self._held.pop_all()
        self._state = "open"
        return self

    def _on_gpu(self) -> bool:
        return any(each.is_cuda for each in self._model.parameters())

    def _meet(self) -> None:
        """Agree on what runs and where it is written. Collective."""
        options, ranks, library = asdict(self._options), self._ranks, self._library
        equal = {**options, "batch": self._about["batch"], "model": facts.names_of([self._model], "")}
        equal |= {"backend": library["backend"], "averaging": library["averaging"]}
        package = environment.describe_package()
        require_parity(ranks, {**equal, "parameters": facts.count([self._model]), "package version": package})
        places = ranks.gather((os.uname().nodename, environment.affinity()))
        cores = {core for host, own in places if host == os.uname().nodename for core in own}
        other = None if turns.wanted() else evidence.OtherLoad(sorted(cores)).sample(at_least_s=0.2)
        loads, meeting = ranks.gather(other), Path()
        name = f"{utc_stamp()}-{library['backend']}-{ranks.workers}w-{os.getpid()}"
        self._directory = (self._out or Path("runs") / self._options.study / name).absolute()
        with fail_together(ranks):
            if ranks.rank == 0:
                records.require_no_run(self._directory)
                with writing(self._directory, "choose a writable --out"):
                    self._directory.parent.mkdir(parents=True, exist_ok=True)
                    meeting = self._held.enter_context(unfinished(self._directory, folder=True))
                self._run = Run(self._directory, meeting, options, **self._about, requested={}, loads=loads)
                self._held.callback(self._run.close)
        self._directory, self._meeting = map(Path, ranks.gather((str(self._directory), str(meeting)))[0])
        asked = {"meeting": str(self._meeting), "options": options, "variables": LAUNCH_VARIABLES, "told": True}
        self._watcher = watch.Watcher({**asked, "forward": self._forward_hooks})
        self._held.callback(self._watcher.finish)

    def _begin(self) -> None:
        """Put the hooks where they are, and begin the record. Collective."""
        with fail_together(self._ranks), writing(self._meeting, "all ranks must see and write the folder of --out"):
            self._watcher.watch(self._model, self._optimizer)
        with fail_together(self._ranks):
            if self._run is not None:
                self._run.started(os.getpid())
                (training,) = trainings_of(processes_in(self._meeting)[1])
                self._greet(self._run.begin(training).effective)
                begins = {each.opened["initial_sha256"] for each in training.ranks}
                if len(begins) > 1 and not training.ranks[0].opened["sharded"]:
                    say(
                        "warning: the ranks begin with different parameters; broadcast those of rank 0 before the "
                        "recorder (Horovod: broadcast_parameters), or they train different models"
                    )

    def _greet(self, effective: Mapping[str, Any]) -> None:
        way = f" ({effective['backend']} over {effective['transport']})" if self.workers > 1 else ""
        say(
            f"recording {plural(self.workers, 'worker')}{way}, {effective['model']} with "
            f"{effective['parameters']:,} parameters, into {os.path.relpath(self._directory)}"
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._state != "open" or os.getpid() != self._pid:  # what a fork of the script leaves is not its own
            return
        self._state = "closed"
        self.leave()
        with self._held:
            wrong = self._wrong_use() if error is None else ""
            self._watcher.finish(wrong or (_named(error) if error else ""))
            with suppress(OSError):
                self._watcher.keep("losses", self._told_losses())
            if error is None:
                self._finish(wrong)
            else:
                with suppress(Exception):  # it is not the error to tell
                    self._close()

    def _wrong_use(self) -> str:
        """Return what leaves nothing to measure, "" where there is something."""
        made, warmup = self._watcher.made, self._options.warmup_steps
        if not made and self._turns > MOST_TURNS:  # each is a step
            made = self._turns
        if made > warmup or self._is_over():
            return ""
        if made:
            return (
                f"all {made} steps belong to the warm-up of {warmup}, and none is left to measure; make more steps, or "
                f"set warmup_steps= below {made}"
            )
        return "not a single step was recorded" + (
            f": the optimizer did not step in {self._turns:,} turns; give the one that is stepped, or mark updates of "
            "your own with record.lap('update')"
            if self._turns
            else "; loop over record.steps(loader), not over the loader itself"
        )

    def _finish(self, wrong: str) -> None:
        """Make the run directory when all ranks have left; raise what was wrong. Collective.

        What was trained is worth more than the record: where that cannot be kept, the script goes on; wrong use ends it.
        """
        failure = "" if self._watcher.failure is None else _named(self._watcher.failure)
        with _waiting("every rank must leave the recorder; one that still trains makes more steps than this one"):
            everybody = self._ranks.gather((wrong, failure))
        lost = self._close() if self._run is not None else ""
        lost = self._ranks.gather(lost)[0]
        for rank, (text, failed) in enumerate(everybody):
            who = f"rank {rank}: " if self.workers > 1 and not wrong else ""
            if text:
                raise StudyError(f"{self._directory}: {who}{wrong or text}")
            lost = lost or (f"{who}{failed}" if failed else "")
        if lost and self._options.disk_full == "end":
            raise StudyError(f"{self._directory}: the recording failed: {lost}")
        if lost and self._run is not None and not failure:
            say(f"error: the recording failed, and the training goes on without it: {lost}")

    def _close(self) -> str:
        """Make the run directory of what the ranks have left, the first that comes; return why it cannot be made."""
        try:
            (self._meeting / _CLOSING).mkdir()
        except OSError:
            return ""
        try:
            run = self._run
            if run is None:
                begun = records.read_run(self._directory)
                options = asdict(self._options)
                run = Run(self._directory, self._meeting, options, **self._about, requested={}, record=begun)
                run.started(os.getpid())
            run.ended()
            (training,) = trainings_of(processes_in(self._meeting)[1])
            run.write(training, 1, failed="")
            if self._run is None:
                shutil.rmtree(self._meeting, ignore_errors=True)
            return records.read_run(self._directory).reason
        except Exception as error:
            with suppress(Exception):
                begun = records.read_run(self._directory)
                finished = utc_now()
                records.finish_run(
                    self._directory, begun, status="failed", finished=finished, totals={}, reason=_named(error)
                )
            return _named(error)

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
        return self._over(loader, accumulate)

    def _over(self, loader: Iterable[T], accumulate: int) -> Iterator[T]:
        self.begin_loop(loader)
        try:
            batches = iter(loader)  # workers that it starts are waited for: that is data, too
            size = getattr(loader, "batch_size", None)
            while not self.begin() and not self.ended:
                try:
                    batch = next(batches)
                except StopIteration:
                    self._tell("ended")
                    return
                self.fetched(batch, accumulate=accumulate, size=size)
                yield batch
        finally:  # after the last turn; or after `break`, or an error, in the middle of one
            self.leave()

    @_in_loop
    def begin_loop(self, loader: Any) -> None:
        """Begin a loop over a loader: an epoch. `steps` does so by itself, and what follows."""
        self._watcher.begin_loop(getattr(loader, "dataset", None))

    @_in_loop
    def begin(self) -> None:
        """Begin a turn, which waits for its batch from now on, and end the one before."""
        self.in_step = False
        self._watcher.fetch()

    @_in_loop
    def fetched(self, batch: Any, *, accumulate: int = 1, size: Any = None) -> None:
        """End the wait for `batch`, of a loader that calls it `size`."""
        whole, turn = self._about["batch"], self._turns % accumulate
        if whole is None:
            samples = self._watcher.samples_of(batch, size)
            self._counted = self._counted or bool(samples)
            if not self._counted:
                raise ConfigError(
                    f"recorder: how many samples a {type(batch).__name__} from the loader holds cannot be seen; give "
                    "batch="
                )
        else:
            samples = whole * (turn + 1) // accumulate - whole * turn // accumulate
        self._watcher.tell("batch", samples)
        self._turns += 1
        self.in_step = True

    @_in_loop
    def leave(self) -> None:
        """Leave a loop: what follows is in no step."""
        self.in_step = False
        self._watcher.tell("left")

    @_in_loop
    def _tell(self, kind: str, number: int = 0) -> None:
        self._watcher.tell(kind, number)

    def lap(self, name: str) -> None:
        """End the phase `name` of the step: data, forward, backward, sync, update; it began with what was seen last.

        Where one CUDA graph holds forward and backward, the phase is called compute, as in steps captured by `train`.
        What hooks have seen of the step stays; a lap of the same name that comes again is added.
        """
        if name not in LAPS:
            raise ConfigError(f"record.lap: unknown lap {name!r}{nearest(name, LAPS)}; allowed: {', '.join(LAPS)}")
        self._require_open(f"lap({name!r})")
        if not self.in_step and not self._is_over():
            raise StudyError(
                f"record.lap({name!r}): outside a step; mark laps inside `for ... in record.steps(loader)`"
            )
        if self._options.timer_mode != "off" or name == "update":
            self._tell("lap", LAPS.index(name))

    @_in_loop
    def loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of this step, shape (), for its row; on a GPU it is read at the end, and not waited for."""
        if not self.in_step:
            raise StudyError("record.loss: outside a step; call it inside `for ... in record.steps(loader)`")
        told = loss.detach().reshape(())
        if told.device.type == "cpu":
            self._losses.extend((now(), float(told)))
            return
        self._losses.extend((now(), 0.0))
        self._on_device.append(told.clone())  # a captured step writes the next one to the same place
        if len(self._on_device) % _LOSSES == 0:
            self._on_device[-_LOSSES:] = [torch.stack(self._on_device[-_LOSSES:])]

    def _told_losses(self) -> bytes:
        """Return pairs of a moment and a loss as float64."""
        if self._on_device:
            values = torch.cat([each.reshape(-1) for each in self._on_device]).double().tolist()
            self._losses[1::2] = array("d", values)
        return self._losses.tobytes()

    @contextmanager
    def skip(self) -> Iterator[None]:
        """Leave out what is done inside, such as an evaluation: it belongs to no step and not to the timed window."""
        self._require_open("skip")
        self._tell("skip")
        try:
            yield
        finally:
            self._tell("skipped")

    def _is_over(self) -> bool:
        """Return whether nothing is recorded any more; raise why, where the script wants to end with the record."""
        failure = self._watcher.failure
        if failure is not None and self._options.disk_full == "end" and self._state == "open":
            raise StudyError(f"{self._directory}: the recording failed: {_named(failure)}")
        return self._watcher.state != "recording"

    def _require_open(self, what: str) -> None:
        if self._state != "open":
            raise StudyError(
                f"record.{what}: the recorder is not open; use it inside `with horovod_study.recorder(...)`"
            )


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Say after a while that this rank waits for others, who may never come, and end nothing."""
    timer = threading.Timer(PATIENCE_S, say, [f"still waiting for the other ranks: {what}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _gather(library: str, model: nn.Module) -> Callable[[Any], list[Any]]:
    """Return what gathers values over the library that a script has started.

    Raises BackendError where a launcher started several processes and the script has not connected them yet.
    """
    if library == "horovod":
        # Named, or it would bear the name of its type: a text here and None there would wait for ever.
        gather = functools.partial(sys.modules["horovod.torch"].allgather_object, name="horovod_study.recorder")
        return lambda value: list(gather(value))
    if library == "mpi":
        return lambda value: list(sys.modules["mpi4py.MPI"].COMM_WORLD.allgather(value))
    if library == "ddp":
        wrapped, dist = facts.averaging(model), torch.distributed
        group = None if wrapped is None else wrapped.process_group

        def gather_objects(value: Any) -> list[Any]:
            values: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(values, value, group=group)
            return values

        return gather_objects
    launcher = detect(os.environ)
    if launcher.workers > 1:
        raise BackendError(
            f"{launcher.launcher} started {launcher.workers} processes, but this script has not connected them; call "
            "hvd.init() or torch.distributed.init_process_group() before the first step"
        )
    return lambda value: [value]


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that takes hooks: Accelerate's wrapper is one by name only and passes its steps on."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        inside = getattr(optimizer, "optimizer", None)
        if not isinstance(inside, torch.optim.Optimizer):
            raise ConfigError(
                f"recorder: optimizer is a {type(optimizer).__name__}, which takes no hooks; give the one inside it"
            )
        optimizer = inside
    return optimizer


def _named(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, StudyError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")
