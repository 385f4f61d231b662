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
import itertools
import math
import os
import shutil
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import nn

from horovod_study import records
from horovod_study.comm import detect, fail_together, require_parity
from horovod_study.comm.launch import LAUNCH_VARIABLES
from horovod_study.config.roles import Role, named
from horovod_study.config.run import LAPS, OPTIONS
from horovod_study.config.workload import workload
from horovod_study.errors import BackendError, ConfigError, StudyError, error_line, nearest
from horovod_study.files import unfinished, write_file, writing
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import now, utc_stamp
from horovod_study.recording.command import CommandRun, end_run, processes_in, trainings_of
from horovod_study.recording.rank import facts, turns
from horovod_study.recording.rank.events import DATA_SETS, NUMBER
from horovod_study.recording.rank.watch import Door, Watcher
from horovod_study.text.progress import say
from horovod_study.text.words import plural

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
SCRIPT = workload("script", __file__, {name: OPTIONS[name] for name in named(OPTIONS, Role.WINDOW | Role.CLOCK)})
"""Anybody's training: it has options of how it is measured and filed."""


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
            self.give_up(error)
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
    measured: dict[str, Any] = {} if batch is None else {"batch": batch}
    measured |= {"warmup_steps": warmup_steps, "steady": steady, "timer_mode": timer_mode, "disk_full": disk_full}
    measured |= {"system_interval_s": system_interval_s, "study": study, "partition": partition, "repeat": repeat}
    read = vars(SCRIPT.configure(measured, source="recorder"))
    inner: Any = optimizer
    while isinstance(inner, torch.optim.Optimizer) and not hasattr(inner, "_optimizer_step_pre_hooks"):
        inner = getattr(inner, "optimizer", None)  # Accelerate's wrapper is one by name only and passes its steps on
    if not isinstance(model, nn.Module):
        raise ConfigError(f"recorder: model is a {type(model).__name__}; give the torch.nn.Module that is trained")
    if not isinstance(inner, torch.optim.Optimizer):
        who = type(optimizer).__name__
        raise ConfigError(f"recorder: optimizer is a {who}; give the torch.optim.Optimizer that is stepped")
    asked = {"options": {name: read[name] for name in measured if name != "batch"}, "forward": forward_hooks}
    known = {"batch": batch, "model_name": model_name, "own": options or {}}
    return Recording(model, inner, None if out is None else Path(out), asked, known)


_TOGETHER = 512  # so many losses of a GPU become one tensor, which needs less of its memory


class Recording(Watcher):
    """The steps of one training loop while they are recorded, from one of the ranks: what `recorder` returns.

    Hooks are on its model and optimizer alone, and gone at the end. What a loop says of itself is an event as all
    others.
    """

    rank: int
    workers: int  # known, as all of these, inside the `with` statement
    gather: Callable[[Any], list[Any]]
    _told = True

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, out: Path | None, asked: Any, known: Mapping[str, Any]
    ) -> None:
        """`known`: what else the record says: batch, model_name and own, the options of the script."""
        super().__init__({**asked, "variables": LAUNCH_VARIABLES})
        self._models, self._optimizer = [model], optimizer
        self._out, self._options, self._known = out, asked["options"], known
        self._use = "new"  # -> open -> closed
        self.in_step = False  # whether there is a batch to train on
        self._batches = 0  # of all loops
        self._command: CommandRun | None = None  # on rank 0
        self._losses = array("d")  # pairs of a moment and the loss
        self._moments = array("d")  # of the losses of a GPU, ...
        self._newest: list[torch.Tensor] = []
        self._read_later: list[torch.Tensor] = []  # ... which are here, the older ones together

    # ------------------------------------------------------------------------------------------ beginning and end

    @property
    def directory(self) -> Path:
        """The run directory, the same on all ranks; known from the beginning of the `with` statement on."""
        if self._use == "new":
            self._require("directory")
        return self._directory

    def __enter__(self) -> Self:
        if self._use != "new":
            raise StudyError("recorder: was used already; it records one run, make another one with another out=")
        self._use, self._pid = "closed", os.getpid()  # until it is open
        with ExitStack() as held:
            try:
                self._meet(held)
                held.callback(self.finish)
                self._start()
            except StudyError as error:
                raise StudyError(str(error).replace("--out", "out=")) from None
            self._held = held.pop_all()
        self._use = "open"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._use != "open" or os.getpid() != self._pid:  # what a fork of the script leaves is not its own
            return
        self._use = "closed"
        self.leave()
        with self._held:
            self.finish("" if error is None else error_line(error))
            if error is None:
                self._finish("" if self.failure is None else error_line(self.failure))
            else:
                self._close()

    def _meet(self, held: ExitStack) -> None:
        """Agree with all ranks on what runs, and on where it is written and noted. Collective."""
        (model,) = self._models
        library = facts.workers_of([model], self._optimizer, on_gpu=any(each.is_cuda for each in model.parameters()))
        self.rank, self.workers = library["rank"], library["workers"]
        self.gather = _gathering(library["backend"], model)
        with _waiting("every rank must enter `with horovod_study.recorder(...)`"):
            self.gather(None)
        options, host = self._options, os.uname().nodename
        equal = {**options, "batch": self._known["batch"], "model": facts.names_of([model], "")}
        equal |= {"backend": library["backend"], "averaging": library["averaging"]}
        package = environment.describe_package()
        require_parity(self, {**equal, "parameters": facts.count([model]), "package version": package})
        places = self.gather((host, environment.affinity()))
        cores = {core for name, own in places if name == host for core in own}
        loads = self.gather(None if turns.wanted() else evidence.OtherLoad(sorted(cores)).sample(at_least_s=0.2))
        name = f"{utc_stamp()}-{library['backend']}-{self.workers}w-{os.getpid()}"
        directory, meeting = (self._out or Path("runs") / options["study"] / name).absolute(), Path()
        with fail_together(self):
            if self.rank == 0:
                records.require_no_run(directory)
                with writing(directory, "choose a writable --out"):
                    directory.parent.mkdir(parents=True, exist_ok=True)
                    meeting = held.enter_context(unfinished(directory, folder=True))
                self._command = CommandRun(directory, meeting, options, {**self._known, "loads": loads})
                held.callback(self._command.close)
        self._directory, self._meeting = map(Path, self.gather((str(directory), str(meeting)))[0])
        self._asked["meeting"] = str(self._meeting)

    def _start(self) -> None:
        """Have every rank watch its training, and begin the record. Collective."""
        with fail_together(self), writing(self._meeting, "all ranks must see and write the folder of --out"):
            for name in ("backward", "grad") if self._timed else ():
                original = getattr(torch.autograd, name)
                setattr(torch.autograd, name, self._watched_backward(original))
                self._undo.append(functools.partial(setattr, torch.autograd, name, original))
            own = self._optimizer
            self._undo.append(own.register_step_pre_hook(Door(self._before_update, self.give_up)).remove)
            self._undo.append(own.register_step_post_hook(Door(self._after_update, self.give_up)).remove)
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: None if (there := me()) is None else there._leave())
            self._in_loop, self._most = True, math.inf
            self._open([own])
        with fail_together(self):
            if self._command is None:
                return
            self._command.started(os.getpid())
            (training,) = trainings_of(processes_in(self._meeting)[1])
            found, opened = self._command.begin(training).effective, [each.opened for each in training.ranks]
            way = f" ({found['backend']} over {found['transport']})" if self.workers > 1 else ""
            say(
                f"recording {plural(self.workers, 'worker')}{way}, {found['model']} with {found['parameters']:,} "
                f"parameters, into {os.path.relpath(self.directory)}"
            )
            if len({each["initial_sha256"] for each in opened}) > 1 and not opened[0]["sharded"]:
                say(
                    "warning: the ranks begin with different parameters; broadcast those of rank 0 before the recorder "
                    "(Horovod: broadcast_parameters), or they train different models"
                )

    def _finish(self, failure: str) -> None:
        """Make the run directory when all ranks have left, and raise what leaves nothing to measure. Collective.

        What was trained is worth more than the record: where that cannot be kept, `failure` of a rank's own included,
        the script goes on.
        """
        with _waiting("every rank must leave the recorder; one that still trains makes more steps than this one"):
            everybody = self.gather(failure)
        lost, wrong = self.gather(("", "") if self._command is None else self._close())[0]
        if wrong:
            raise StudyError(f"{self.directory}: {wrong}")
        for rank, failed in enumerate(everybody):
            lost = lost or (f"rank {rank}: {failed}" if failed and self.workers > 1 else failed)
        if lost and self._options["disk_full"] == "end":
            raise StudyError(f"{self.directory}: the recording failed: {lost}")
        if lost and self._command is not None and not failure:
            say(f"error: the recording failed, and the training goes on without it: {lost}")

    def _close(self) -> tuple[str, str]:
        """Make the run directory of what the ranks have noted, the first that comes.

        Return why it cannot be made, and what leaves nothing to measure.
        """
        try:
            (self._meeting / "closing").mkdir()
        except OSError:
            return "", ""
        try:
            run = self._command or CommandRun(self.directory, self._meeting, self._options, self._known, over=True)
            (training,) = trainings_of(processes_in(self._meeting)[1])
            run.ended()
            wrong = run.write(training, 1, failed="")
            if self._command is None:  # rank 0 may have been killed
                shutil.rmtree(self._meeting, ignore_errors=True)
            return records.read_run(self.directory).reason, wrong
        except Exception as error:  # of the training one may be on its way
            with suppress(Exception):
                end_run(self.directory, "failed", {}, error_line(error))
            return error_line(error), ""

    # ------------------------------------------------------------------------------------------ the loop

    def steps(self, loader: Iterable[T], *, accumulate: int = 1) -> Iterator[T]:
        """Yield what `loader` gives; a step ends with the turn in which the optimizer steps.

        Call it once for each epoch. The wait for the loader is the data lap. Where the gradients of several batches
        are added up before one update, so many turns make one step, without a word; `accumulate` says how many
        turns `batch=` was given for. A turn that is left by `break` counts when its optimizer has stepped.
        """
        self._require("steps")
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
                    self._mark("ended")
                    return
                self.fetched(batch, accumulate=accumulate, size=size)
                yield batch
        finally:  # after the last turn; or after `break`, or an error, in the middle of one
            self.leave()

    @_in_loop
    def begin_loop(self, loader: Any) -> None:
        """Begin a loop over a loader: an epoch. `steps` does so by itself, and what follows."""
        self._loops, self._fresh, self._thread = self._loops + 1, True, get_ident()
        number = self._number_of(getattr(loader, "dataset", None))
        self._loop = self._loops * DATA_SETS + number
        self._note(NUMBER["start"], number)

    @_in_loop
    def begin(self) -> None:
        """Begin a turn, which waits for its batch from now on, and end the one before."""
        self.in_step = False
        self._turn()
        if self._turns is not None and self.made >= self._turns.until:
            self._wait_for_turn()
        self._log.write()
        self._note(NUMBER["fetch"], self._loop)

    @_in_loop
    def fetched(self, batch: Any, *, accumulate: int = 1, size: Any = None) -> None:
        """End the wait for `batch`, of a loader that calls it `size`."""
        whole, turn = self._known["batch"], self._batches % accumulate
        if whole is None:
            samples = facts.samples_of(batch, size=size if isinstance(size, int) else None, second=self._second)
            if not samples and not self._batches:
                raise ConfigError(
                    f"recorder: how many samples a {type(batch).__name__} from the loader holds cannot be seen; give "
                    "batch="
                )
        else:
            samples = whole * (turn + 1) // accumulate - whole * turn // accumulate
        self._note(NUMBER["batch"], samples)
        self._samples += samples
        self._batches += 1
        self.in_step = True

    @_in_loop
    def leave(self) -> None:
        """Leave a loop: what follows is in no step."""
        self.in_step = False
        self._note(NUMBER["left"])
        self._turn()
        self._fresh = True

    @_in_loop
    def _mark(self, kind: str, number: int = 0) -> None:
        self._note(NUMBER[kind], number)

    def lap(self, name: str) -> None:
        """End the phase `name` of the step: data, forward, backward, sync, update; it began with what was seen last.

        Where one CUDA graph holds forward and backward, the phase is called compute, as in steps captured by `train`.
        What hooks have seen of the step stays; a lap of the same name that comes again is added.
        """
        if name not in LAPS:
            raise ConfigError(f"record.lap: unknown lap {name!r}{nearest(name, LAPS)}; allowed: {', '.join(LAPS)}")
        self._require(f"lap({name!r})", in_step=True)
        if self._options["timer_mode"] != "off" or name == "update":
            self._mark("lap", LAPS.index(name))
            self._updates += name == "update"

    @_in_loop
    def loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of this step, shape (), for its row; on a GPU it is read at the end, and not waited for."""
        self._require("loss", in_step=True)
        loss = loss.detach().reshape(())
        if loss.device.type == "cpu":
            self._losses.extend((now(), float(loss)))
            return
        self._moments.append(now())
        self._newest.append(loss.clone())  # a captured step writes the next one to the same place
        if len(self._newest) == _TOGETHER:
            self._read_later.append(torch.stack(self._newest))
            self._newest = []

    def finish(self, failed: str = "") -> None:
        """End the events of this rank in good order, and take all hooks away; `failed`: why the training has failed."""
        if self.state == "recording":
            with suppress(Exception):
                values = [each.reshape(-1).tolist() for each in (*self._read_later, *self._newest)]
                self._losses.extend(itertools.chain(*zip(self._moments, itertools.chain(*values), strict=False)))
                write_file(Path(self._path("losses")), self._losses.tobytes())
        super().finish(failed)

    @contextmanager
    def skip(self) -> Iterator[None]:
        """Leave out what is done inside, such as an evaluation: it belongs to no step and not to the timed window."""
        self._require("skip")
        self._mark("skip")
        self._thread = 0  # hooks see nothing of what is in no step
        try:
            yield
        finally:
            self._thread = get_ident()
            self._mark("skipped")

    def _is_over(self) -> bool:
        """Return whether nothing is recorded any more; raise why, where the script wants to end with the record."""
        if self.failure is not None and self._options["disk_full"] == "end" and self._use == "open":
            raise StudyError(f"{self.directory}: the recording failed: {error_line(self.failure)}")
        return self.state != "recording"

    def _require(self, what: str, *, in_step: bool = False) -> None:
        """Raise StudyError where `what` is used outside of the recorder, or of a step."""
        if self._use != "open":
            wrong = "the recorder is not open; use it inside `with horovod_study.recorder(...)`"
        elif in_step and not self.in_step and not self._is_over():
            wrong = "outside a step; use it inside `for ... in record.steps(loader)`"
        else:
            return
        raise StudyError(f"record.{what}: {wrong}")


_PATIENCE_S = 30.0
"""After so long somebody who waits for other ranks to enter or leave is told what for."""


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Say after a while that this rank waits for others, who may never come, and end nothing."""
    timer = threading.Timer(_PATIENCE_S, say, [f"still waiting for the other ranks: {what}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _gathering(library: str, model: nn.Module) -> Callable[[Any], list[Any]]:
    """Return what gathers small, plain values over the library that a script has started: on every rank those of all.

    Raises BackendError where a launcher started several processes and the script has not connected them yet.
    """
    if library == "horovod":
        # Named, or it would bear the name of its type: a text here and None there would wait for ever.
        gather = functools.partial(sys.modules["horovod.torch"].allgather_object, name="horovod_study.recorder")
        return lambda value: list(gather(value))
    if library == "mpi":
        return lambda value: list(sys.modules["mpi4py.MPI"].COMM_WORLD.allgather(value))
    if library in ("ddp", "distributed"):
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
