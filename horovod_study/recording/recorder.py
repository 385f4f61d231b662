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

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import nn

from horovod_study.comm import fail_together, require_parity
from horovod_study.comm.attached import Attached, WaitNotice, attach, bare
from horovod_study.config import LAPS
from horovod_study.errors import ConfigError, StudyError, nearest
from horovod_study.measure import environment
from horovod_study.measure.clock import LapClock, now, utc_stamp
from horovod_study.measure.evidence import parameter_count, parameter_sha256, sharded
from horovod_study.recording.rank.precision import PrecisionObserver
from horovod_study.progress import say
from horovod_study.recording.hooks import Hook, Hooks
from horovod_study.recording.session import RecordOptions, Session

T = TypeVar("T")

_PRECISION_STEPS = 3
"""So many steps tell what a training computes in; layers are not watched after them."""
_MAX_IRREGULAR = 0.05
"""Part of the steps whose updates may come otherwise, such as those that a loss scaler skips, without a doubt."""
_BY_BACKWARDS = (
    "no optimizer stepped: a step is from one backward to the next, and the update is in no lap, unless "
    "record.lap('update') marks it (docs/your_script.md)"
)
_MAX_NAMES = 4
"""So many models are named, of those that are trained together."""
MAX_TURNS = 100
"""After so many turns of a loop without an update from its beginning on, none is waited for any more."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _in_loop(method: Method) -> Method:
    """Return a method for the loop: an error of the recorder's own ends the recording, and it then does nothing.

    Wrong use is a StudyError, and is raised.
    """

    @functools.wraps(method)
    def safe(self: "Recording", *arguments: Any, **named: Any) -> Any:
        if self.failure is not None:
            return None
        try:
            return method(self, *arguments, **named)
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
    DistributedOptimizer). `out` is the run directory (by default a new one below runs/), rank 0's for all ranks.
    `batch` is the samples of a step on one worker; without it they are counted, along the first dimension of what the
    loader gives. `model_name` is what tables and figures call the model, by default its class. Without
    `forward_hooks` the end of forward is what `record.lap("forward")` says. `options` are the script's own in which its
    runs may differ, numbers and texts: runs are repeats of each other only where these are equal. The other options
    are those of `horovod-study strain train`. Raises StudyError for an option that is not valid.
    """
    measured = RecordOptions.read(
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
    )
    return Recording(
        model,
        optimizer,
        out=None if out is None else Path(out),
        options=measured,
        batch=batch,
        model_name=model_name,
        forward_hooks=forward_hooks,
        own=options or {},
    )


class Recording:
    """The steps of one training loop while they are recorded: what `recorder` returns."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        out: Path | None,
        options: RecordOptions,
        batch: int | None = None,
        model_name: str | None = None,
        forward_hooks: bool = True,
        own: Mapping[str, Any] = MappingProxyType({}),
        peers: Attached | None = None,
        beside: Sequence[tuple[nn.Module, torch.optim.Optimizer | None]] = (),
        count_samples: Callable[[Any], int] | None = None,
        requested: Mapping[str, Any] = MappingProxyType({}),
        told: bool = False,
    ) -> None:
        """`optimizer` None: parameters are updated without one, a turn is a step. `peers` None: those of the script.

        `beside`: other models that are trained in the same loop, each with its optimizer, as in a GAN, or without one
        of its own, as a decoder that has that of its encoder. `count_samples` returns how many samples a batch has.
        `requested`: what else a study has asked for, and the script was told. `told`: the caller sees backwards and
        updates, and tells the hooks and `end_backward` of them.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"recorder: model is a {type(model).__name__}; give the torch.nn.Module that is trained")
        if not isinstance(optimizer, torch.optim.Optimizer | None):
            raise ConfigError(
                f"recorder: optimizer is a {type(optimizer).__name__}; give the torch.optim.Optimizer that is stepped"
            )
        self._model, self._optimizer = model, None if optimizer is None else _inner(optimizer)
        self._given_peers = peers
        self._beside = tuple((each, None if own is None else _inner(own)) for each, own in beside)
        self._out, self._options, self._batch = out, options, batch
        models = self._models()
        self._bare = models[0] if len(models) == 1 else nn.ModuleList(models)
        self._given_name = model_name
        self._forward_hooks, self._own = forward_hooks, dict(own)
        self._state = "new"  # -> open -> closed
        self.in_step = False  # whether a step is under way
        self.updated = False  # whether the optimizer has stepped in it
        self.made, self._epoch = 0, -1  # steps so far
        self._look_at: float = 0  # so many steps are looked at for what is to be done between steps, ...
        self._look_after = 0.0  # ... or the first after this moment
        self._samples: int | None = None  # of the step so far
        self._loss: torch.Tensor | None = None
        self.train_samples: int | None = None  # of the data set; `steps` asks its loader
        self._window_samples = 0  # of the steps after the warm-up
        self._all_samples = 0
        self.ended = False  # whoever gives turns wants no more steps
        self.least: int | None = None  # so many steps are what was asked for
        self.hooks: list[Hooks] = []
        self._parts = ""  # how the ranks' models differ in size
        self._apart = ""  # that they have been trained to different parameters
        self._joined: dict[str, Any] = {}  # what the record says of models since others have joined
        self._accumulate = 1
        self._turns = self._backwards = 0  # of the loop, in the step so far
        self._fetched: list[int] = []  # samples of each batch that was fetched for this step, or ahead
        self._turns_of_steps: Counter[int] = Counter()  # turns -> steps that took so many; 0 turns: without an update
        self._turns_left = 0  # in steps that ended without an update, and do not count
        self._by_turns = optimizer is None  # no update was ever seen: a step is a turn
        self._requested, self._told = dict(requested), told
        self._count = count_samples or batch_samples
        self.failure: StudyError | None = None  # why the recorder has stopped before the training
        self._uncounted = False  # whether steps were counted for samples, because nobody knows how many they have

    # ------------------------------------------------------------------------------------------ beginning and end

    @property
    def workers(self) -> int:
        """The number of workers; known inside the `with` statement."""
        return self._peers.workers

    @property
    def directory(self) -> Path:
        """The run directory, the same on all ranks; known from the beginning of the `with` statement on."""
        if self._state == "new":
            self._require_open("directory")
        return self._session.directory

    @property
    def is_root(self) -> bool:
        """Whether this rank speaks for all; known from the beginning of the `with` statement on."""
        return self._session.is_root

    @property
    def clock(self) -> LapClock:
        """The clock of the steps, from the beginning of the `with` statement on."""
        return self._clock

    @property
    def alone(self) -> bool:
        """Whether it trains until its own end, instead of until whoever gives turns has enough of it."""
        return self._session.turns is None

    @_in_loop
    def mark(self) -> Any:
        """Return a stamp of this moment, for `begin` and `fetched`."""
        return self._clock.mark()

    def give_up(self, error: Exception) -> None:
        """End the recording because of an error of its own: the training goes on, and the record will say why."""
        if self.failure is not None:
            return
        self.failure = StudyError(f"the recorder stopped at step {self.made:,}: {_named(error)}")
        self.in_step = False  # hooks do nothing now; they go at the end, because one of them may be running
        if self._session.turns is not None:  # nobody may wait for the steps of this rank any more
            self._session.turns.leave()
        say(f"horovod-study: the training goes on, and {self.failure}")

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StudyError(
                "recorder: was used already; a recorder records one run, make another one with another out="
            )
        self._state, self._pid = "closed", os.getpid()  # until it is open
        device = next((parameter.device for parameter in self._bare.parameters()), torch.device("cpu"))
        self._peers = self._given_peers or attach(self._model, self._optimizer, on_gpu=device.type == "cuda")
        with WaitNotice("every rank must enter `with horovod_study.recorder(...)`"):
            self._session = Session(self._peers, self._options)
        try:
            self._create(device)
            self._session.start(device)
            self._session.open_clock()
        except BaseException as error:
            self._session.close(error)
            raise
        self._clock = self._session.clock
        self._precision = PrecisionObserver(self._bare, lambda call: Hook(call, self.give_up))
        self.hooks = [
            Hooks(self, self._clock, model, optimizer, forward=self._forward_hooks, told=self._told)
            for model, optimizer in ((self._model, self._optimizer), *self._beside)
        ]
        self._state = "open"
        if self._session.is_root:
            say(_greeting(self._session.record.effective, self._peers, self._session.directory))
        if self._session.granted <= self.made:
            self._wait_for_turn()
        return self

    def _create(self, device: torch.device) -> None:
        """Describe what runs, before its first step, and settle where it is written. Collective."""
        peers, session, model = self._peers, self._session, self._bare
        asked = {**asdict(self._options), "batch": self._batch}
        about = {
            "model": self._model_names(),
            "backend": peers.backend,
            "reduction": peers.reduction,
            "parameters": parameter_count(model),
        }
        # A script that divides its model among the ranks trains as it should; in lines of one's own it is a mistake.
        divided = self._told and self._find_parts(parameter_count(model))
        equal = {name: value for name, value in about.items() if not divided or name not in ("model", "parameters")}
        require_parity(peers, {**asked, **equal, "package version": environment.describe_package()})
        initial = parameter_sha256(model)
        if len(set(peers.gather(initial))) > 1 and session.is_root and not (divided or sharded(model)):
            say(
                "warning: the ranks begin with different parameters; broadcast those of rank 0 before the recorder "
                "(Horovod: broadcast_parameters), or they train different models"
            )
        rate = None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
        session.describe_ranks(device, lr=rate, settings={})
        for doubt in session.doubts if session.is_root else ():
            say(f"warning: {doubt.replace('--threads 1', 'torch.set_num_threads(1)')}")
        default = f"{utc_stamp()}-{peers.backend}-{peers.workers}w-{os.getpid()}"
        try:
            session.claim(self._out or Path("runs") / self._options.study / default)
            session.create(
                {
                    **asked,
                    **self._requested,
                    "out": str(session.directory),
                    "script": sys.argv[0],
                    **({"options": self._own} if self._own else {}),
                },
                {
                    **about,
                    "transport": peers.transport,
                    "launcher": peers.launcher,
                    "batch": self._batch,
                    "global_batch": None if self._batch is None else self._batch * peers.workers,
                    "optimizer": self._optimizer_names(),
                    "precision": None,  # seen in the first steps
                    "initial_parameter_sha256": initial,
                    "train_samples": None,
                },
                batch=self._batch or 0,
            )
        except StudyError as error:
            raise StudyError(str(error).replace("--out", "out=")) from None

    def _find_parts(self, parameters: int) -> bool:
        """Return whether the ranks train parts of different sizes, and note it. Collective."""
        counts = self._peers.gather(parameters)
        if len(set(counts)) > 1:
            self._parts = (
                f"the ranks train models of {min(counts):,} to {max(counts):,} parameters, parts of one perhaps: the "
                "count in the record is that of rank 0"
            )
        return bool(self._parts)

    def _models(self) -> list[nn.Module]:
        """Return the models without what wraps them, each once, however many optimizers it has."""
        found = [bare(each) for each in (self._model, *(model for model, _ in self._beside))]
        return list({id(each): each for each in found}.values())

    def _model_names(self) -> str:
        given = (self._model, *(model for model, _ in self._beside))
        names = list({id(bare(each)): _model_name(each) for each in given}.values())
        more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
        return self._given_name or " + ".join([*names[:_MAX_NAMES], *more])

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Record another optimizer and its model, which has not stepped before."""
        self._beside = (*self._beside, (model, optimizer))
        self._joined = {
            "model": self._model_names(),
            "optimizer": self._optimizer_names(),
            "parameters": parameter_count(nn.ModuleList(self._models())),
        }
        hooks = Hooks(self, self._clock, model, optimizer, forward=self._forward_hooks, told=self._told)
        self.hooks.append(hooks)

    def _optimizer_names(self) -> str | None:
        if self._optimizer is None:
            return None
        owns = (self._optimizer, *(own for _, own in self._beside))
        return " + ".join(type(each).__name__ for each in owns if each is not None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._state != "open" or os.getpid() != self._pid:  # what a fork of the script leaves is not its own
            return
        self._state = "closed"
        self._precision.stop()
        for hooks in self.hooks:
            hooks.remove()
        ended, totals = error, None
        try:
            if error is None:
                with WaitNotice(
                    "every rank must leave the recorder; one that still trains makes more steps than this one"
                ):
                    totals = self._finish()
        except BaseException as own:
            ended = own
            if not self._can_go_on(own):
                raise
            if own is not self.failure:
                say(f"error: the recording failed, and the training goes on without it: {_named(own)}")
        finally:
            if ended is not None:
                with suppress(Exception):  # it may be what has failed, and is not the error to tell
                    self.close_step()
                    self._session.close_stretch()
            self._session.close(ended)
            self.hooks = []  # and with them the model, which may hold a process group that is destroyed before it
        if totals is not None and self._session.is_root:
            step = totals["step_s_median"]
            say(
                f"recorded {totals['steps']:,} steps after {totals['excluded_steps']:,} of warm-up: "
                f"{totals['samples_per_s']:,.0f} samples/s with {self.workers} worker{'s' * (self.workers > 1)}"
                + (f", step {step * 1e3:.2f} ms (median)" if step is not None else "")
                + f"; horovod-study explain {os.path.relpath(self._session.directory)}"
            )

    def _can_go_on(self, error: BaseException) -> bool:
        """Return whether the script goes on after an error in closing the record.

        What it has trained is worth more than the record. Wrong use, which leaves nothing to measure, ends it.
        """
        if self.failure is not None:
            return True
        wrong_use = self.made <= self._options.warmup_steps
        return isinstance(error, Exception) and self._options.disk_full == "go-on" and not wrong_use

    def _finish(self) -> dict[str, Any]:
        """Close the record, and return the totals. Collective."""
        session = self._session
        session.stop_sampling()
        with fail_together(self._peers):
            self.close_step()
        for rank, why in enumerate(self._peers.gather(None if self.failure is None else str(self.failure))):
            if why is not None:
                self.failure = self.failure or StudyError(f"rank {rank}: {why}")
                raise self.failure
        with fail_together(self._peers):
            self._require_steps()
        learnt, sha256 = self._learnt()
        first = session.find_steady(self.made, doubt=self._doubt())
        samples, window_s = self._window(first.step)
        totals = session.totals(first, made=self.made, samples=samples, window_s=window_s)
        totals |= {
            "epochs": self._epoch + 1,
            **dict.fromkeys(("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "target_reached")),
            "train_s": totals["window_s"],
            "wall_s": now() - session.zero,
            "parameter_sha256": sha256,
        }
        session.finish(totals, learnt)
        return totals

    def _doubt(self) -> str:
        """Return what to doubt of steps and samples, "" for nothing."""
        steps = _BY_BACKWARDS if self._optimizer is None else _update_doubt(self._turns_of_steps)
        samples = "samples were not seen: each step counts as one, and samples/s are steps/s" if self._uncounted else ""
        return "; ".join(filter(None, (steps, samples, self._parts, self._apart)))

    def _require_steps(self) -> None:
        where, warmup = self._session.directory, self._options.warmup_steps
        if self.made == 0:
            raise StudyError(
                f"{where}: not a single step was recorded"
                + (
                    f": the optimizer did not step in {self._turns_left:,} turns; give the one that is stepped, or "
                    "mark updates of your own with record.lap('update')"
                    if self._turns_left
                    else "; loop over record.steps(loader), not over the loader itself"
                )
            )
        if self.made <= warmup:
            raise StudyError(
                f"{where}: all {self.made} steps belong to the warm-up of {warmup}, and none is left to measure; make "
                f"more steps, or set warmup_steps= below {self.made}"
            )

    def _window(self, first: int) -> tuple[int, float | None]:
        """Return samples and seconds of the steps from `first` on: those of the rows, where all rows know them.

        Laps tile the steps and steps tile a stretch: with all rows there, they are the window.
        """
        rows = self._session.rows
        inside = rows.timed("step") >= first
        step_s = rows.timed("step_s")[inside]
        if rows.rows_lost or not np.isfinite(step_s).all():
            return self._window_samples, None
        return int(rows.timed("samples")[inside].sum()), float(step_s.sum())

    def _learnt(self) -> tuple[dict[str, Any], str | None]:
        """Return what only now is known of what ran, and the SHA-256 of all ranks' parameters. Collective."""
        samples = self._session.rows.timed("samples")
        mine = {
            "steps": self.made,
            "usual": int(np.median(samples)) if len(samples) else self._batch,
            "sha256": parameter_sha256(self._bare),
            "precision": self._precision.found(),
            "turns": list(self._turns_of_steps.items()),
            "train_samples": self.train_samples,
        }
        everybody = self._peers.gather(mine)
        made, usual = ([each[name] for each in everybody] for name in ("steps", "usual"))
        sha256, precision = (_common([each[name] for each in everybody]) for name in ("sha256", "precision"))
        turns = _turns_per_update([dict(each["turns"]) for each in everybody])
        if self._session.is_root:
            if len(set(made)) > 1:
                say(f"warning: the ranks made {min(made)} to {max(made)} steps; shares and sums of them are not equal")
            if sha256 is None and not (self._parts or sharded(self._bare)):
                self._apart = (
                    "the ranks end with different parameters: they have trained different models, and their gradients "
                    "were not averaged alike"
                )
            if turns not in (None, self._accumulate):
                say(f"note: the optimizer stepped every {turns} turns of the loop: steps are counted by updates")
        return {
            "batch": None if None in usual else round(sum(usual) / len(usual)),
            "global_batch": None if None in usual else sum(usual),
            "train_samples": everybody[0]["train_samples"],
            "precision": precision,
            "turns_per_update": turns,
            **self._joined,
        }, sha256

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
        if self.train_samples is None and hasattr(data, "__len__"):
            self.train_samples = len(data)
        self._accumulate = accumulate
        self.begin_epoch()
        return self._over(loader, accumulate)

    def _over(self, loader: Iterable[T], accumulate: int) -> Iterator[T]:
        try:
            began = self._clock.mark()
            batches = iter(loader)  # workers that it starts are waited for: that is data, too
            while not self.ended:
                try:
                    batch = next(batches)
                except StopIteration:
                    self.end_loop(began)
                    break
                self.took(batch, began)
                yield batch
                self.turn(accumulate)
                began = self._clock.mark()
        finally:
            # After the last turn; or after `break`, or an error, in the middle of one.
            if self._state == "open":
                self.close_step()

    # Methods for the loop have an unguarded one of the same effect, whose errors its caller catches: a call less each.

    def begin_turn(self, batch: Any, began: Any) -> None:
        """End a turn's wait for its batch, which began at the stamp `began`, and begin a step where none is open."""
        if not self.in_step:  # at first, after an update, or after `skip`
            self.begin_step(began)
        elif self._turns:
            self._settle()
            self._clock.lap("residual", at=began)
        self._clock.lap("data")
        if self._batch is None:
            if type(batch) is list and batch and type(batch[0]) is torch.Tensor and batch[0].ndim:  # of most loaders
                samples = batch[0].size(0)
            else:
                samples = self._count(batch)
            self._fetched.append(samples)
        else:
            self._fetched.append(0)  # how many are told; that there is a batch counts

    took = _in_loop(begin_turn)

    def end_turn(self, accumulate: int = 1) -> None:
        """End a turn of the loop, and with it the step where the parameters were updated. `steps` does so by itself."""
        if not self.in_step:
            return
        self._turns += 1
        if self.updated or (self._by_turns and self._turns >= accumulate):
            if self._batch is not None and self._turns != accumulate and not self._told:  # it is that of a step
                self._samples = round(self._batch * self._turns / accumulate)
            self.end_step()
        elif self._turns >= MAX_TURNS and not self._turns_of_steps:
            # Nobody will see an update here, such as in a loop that changes its parameters by itself.
            self._by_turns, self.in_step = True, False
            self._clock.forget()

    turn = _in_loop(end_turn)

    @_in_loop
    def end_loop(self, at: Any) -> None:
        """End the last turn of a loop at the stamp `at`: what it did after its last lap is residual of its step."""
        if not self.in_step:
            self._clock.tail(at)

    @property
    def untrained(self) -> bool:
        """Whether a step is under way in which nothing was trained yet."""
        return self.in_step and not (self.updated or self._backwards)

    @_in_loop
    def end_before(self, at: Any) -> None:
        """End a stretch at the stamp `at`: the step under way is none, and its time until then is of the one before."""
        self.in_step = False
        self._clock.forget()
        self._clock.tail(at)

    @_in_loop
    def begin_epoch(self) -> None:
        """Begin an epoch, and a stretch of steps: what is before it is in none. `steps` does so by itself."""
        self._require_open("begin_epoch")
        self.close_step()
        self._epoch += 1
        self.open_stretch()

    def drop_epoch(self) -> None:
        """Do not count the epoch that has begun: it was an evaluation."""
        self._epoch -= 1

    def begin_step(self, at: Any = None) -> None:
        """Begin a step, which waits for its data from now on: for loops that cannot go over `steps`."""
        self._clock.begin(at)
        self.in_step, self.updated, self._samples, self._loss = True, False, None, None
        self._turns = self._backwards = 0
        for hooks in self.hooks:
            hooks.reset()

    begin = _in_loop(begin_step)

    @_in_loop
    def fetched(self, batch: Any, *, begun: Any = None) -> None:
        """End the wait for `batch`, which counts as data; `begun` is the stamp at which it began, if not just now."""
        if begun is not None:
            self._settle()
            self._clock.lap("residual", at=begun)
        self._clock.lap("data")
        if self._batch is None:
            self.count(batch)

    @_in_loop
    def take_ahead(self, batch: Any) -> None:
        """Take a batch that was fetched before this step, which is the one that trains on it."""
        self._fetched.append(self._count(batch) if self._batch is None else 0)

    @property
    def counted(self) -> bool:
        """Whether samples of this step were counted."""
        return self._samples is not None

    @property
    def ahead(self) -> bool:
        """Whether a batch was fetched that is not trained on yet."""
        return bool(self._fetched)

    @_in_loop
    def count(self, batch: Any) -> None:
        """Add the samples of `batch` to those of this step; `fetched` does so by itself."""
        self._samples = (self._samples or 0) + self._count(batch)

    def end_step(self) -> None:
        """End a step; what follows until the next one begins is residual of that one."""
        if not self.in_step:
            return
        for hooks in self.hooks:
            if hooks.gradients:
                hooks.settle()
        self.in_step = False
        turns = self._turns
        if fetched := self._fetched:
            # A batch that no backward has seen yet was fetched ahead, and is that of the next step.
            used = self._backwards if 0 < self._backwards < len(fetched) else len(fetched)
            if self._batch is None:
                self._samples = (self._samples or 0) + sum(fetched[:used])
            del fetched[:used]
            turns = used  # a loop that has ended makes its last turn without a fetch
        if self._samples is None and self._batch is None:
            self._samples, self._uncounted = 1, True
        self._session.rows.add(self.made, self._epoch, self._loss, samples=self._samples)
        self._all_samples += self._samples or self._batch or 0
        warmup_steps = self._options.warmup_steps
        if self.made >= warmup_steps:
            self._window_samples += self._samples or self._batch or 0
        self.made += 1
        self._turns_of_steps[max(turns, 1) if self.updated else 0] += 1
        if self.made >= self._look_at or now() > self._look_after:
            self._look()

    end = _in_loop(end_step)

    def _look(self) -> None:
        """Do what is due after some steps, and settle when that is again."""
        session, warmup_steps = self._session, self._options.warmup_steps
        if self.made >= _PRECISION_STEPS:
            self._precision.stop()
        waits = self.made >= session.granted
        if waits or self.made == warmup_steps:  # the window begins, and a stretch of its own
            session.close_stretch()
            if waits and not self.ended:
                self._wait_for_turn()
            session.open_stretch(timed=self.made >= warmup_steps)
        else:
            session.write_rows()
        writing, self._look_after = session.next_writing()
        due = (_PRECISION_STEPS, warmup_steps, session.granted, self.made + writing)
        self._look_at = min(each for each in due if each > self.made)

    def end_backward(self) -> None:
        """End a backward of this step that was told: the time since the last own gradient is a wait for other ranks."""
        last = None
        self._backwards += 1
        for hooks in self.hooks:
            if hooks.gradients:
                made = hooks.take_gradients()
                if made is not None and (last is None or made > last):
                    last = made
        self._clock.lap("backward", at=last)
        if last is not None:
            self._clock.lap("sync")

    def _wait_for_turn(self) -> None:
        """Wait between two steps until more are granted, where cells of a study train one at a time.

        Where nobody grants any more, the recording ends: what trains from here on does so beside the other cells.
        """
        enough = self.least is not None and self.made >= self.least
        said = self._session.wait_for_turn(self.made, samples=self._all_samples, enough=enough, least=self.least)
        self.ended = said != "go"
        if said == "lost":
            self.give_up(StudyError("the runner that gave its turns has ended"))

    @_in_loop
    def close_step(self) -> None:
        """End a step that is open: it counts if its optimizer has stepped, otherwise it is forgotten."""
        if self.in_step and self.updated:
            self.end()
        elif self.in_step:
            self._turns_left += self._turns
            self.in_step = False
            self._clock.forget()
        self._fetched = []
        self._session.close_stretch()

    @_in_loop
    def open_stretch(self) -> None:
        """Go on: what is between `close_step` and here belongs to no step."""
        self._session.open_stretch(timed=self.made >= self._options.warmup_steps)

    def _settle(self) -> None:
        for hooks in self.hooks:
            hooks.settle()

    @_in_loop
    def lap(self, name: str) -> None:
        """End the phase `name` of the step: data, forward, backward, sync, update; it began with the lap before it.

        Where one CUDA graph holds forward and backward, the phase is called compute, as in steps captured by `train`.
        What hooks have seen of the step stays; a lap of the same name that comes again is added.
        """
        if name not in LAPS:
            raise ConfigError(f"record.lap: unknown lap {name!r}{nearest(name, LAPS)}; allowed: {', '.join(LAPS)}")
        self._require_open(f"lap({name!r})")
        if not self.in_step:
            raise StudyError(
                f"record.lap({name!r}): outside a step; mark laps inside `for ... in record.steps(loader)`, and before "
                "record.skip()"
            )
        self._settle()
        self._clock.lap(name)
        self.updated |= name == "update"

    @_in_loop
    def part(self, name: str) -> None:
        """End a part of the phase `name`, which goes on; "residual": what is no phase."""
        self._settle()
        self._clock.lap(name)

    @_in_loop
    def loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of this step, shape (), for its row; it is read later, and the device not waited for."""
        if not self.in_step:
            raise StudyError("record.loss: outside a step; call it inside `for ... in record.steps(loader)`")
        self._loss = loss.detach().reshape(())

    @contextmanager
    def skip(self) -> Iterator[None]:
        """Leave out what is done inside, such as an evaluation: it belongs to no step and not to the timed window.

        Inside the loop it is at the end of a turn, because it ends the step.
        """
        self._require_open("skip")
        if self.in_step:
            self._settle()
            self._clock.lap("residual")
            self.end()
        self.close_step()
        try:
            yield
        finally:
            self.open_stretch()

    def _require_open(self, what: str) -> None:
        if self._state != "open":
            raise StudyError(
                f"record.{what}: the recorder is not open; use it inside `with horovod_study.recorder(...)`"
            )


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


def batch_samples(batch: Any) -> int:
    """Return the first dimension of the first tensor or array in what a loader gave."""
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for part in batch:
            with suppress(ConfigError):
                return batch_samples(part)
    elif getattr(batch, "shape", ()):
        return int(batch.shape[0])
    raise ConfigError(
        f"recorder: how many samples a {type(batch).__name__} from the loader holds cannot be seen; give batch="
    )


def _model_name(model: nn.Module) -> str:
    """Return the name of the class that somebody has written, inside of what libraries put around it."""
    compiled = False
    while (inner := _wrapped(model)) is not None:
        compiled |= type(model).__name__ == "OptimizedModule"
        model = inner
    return f"{type(model).__name__}{' (compiled)' * compiled}"


def _wrapped(model: nn.Module) -> nn.Module | None:
    """Return the innermost module with all the parameters of a wrapper, None where it is none."""
    package = type(model).__module__
    if not any(
        package == each or package.startswith(f"{each}.")
        for each in ("torch.nn.parallel", "torch._dynamo", "lightning", "lightning_fabric", "pytorch_lightning")
    ):
        return None
    own = set(map(id, model.parameters()))
    inside = [each for each in model.children() if set(map(id, each.parameters())) == own]
    return min(inside, key=lambda each: sum(1 for _ in each.modules()), default=None)


def _named(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, StudyError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _common(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None


def _turns_per_update(turns: Sequence[Mapping[int, int]]) -> int | None:
    """Return how many turns of the loop a step usually has, over all ranks; None where no update was seen."""
    made: Counter[int] = sum((Counter(each) for each in turns), Counter())
    return next((count for count, _ in made.most_common() if count), None)


def _update_doubt(turns: Mapping[int, int]) -> str:
    """Return what to doubt of steps as updates, "" for nothing; `turns`: turns -> steps that took so many."""
    steps, usual = sum(turns.values()), _turns_per_update([turns])
    without, other = turns.get(0, 0), sum(count for made, count in turns.items() if made not in (0, usual))
    if without > _MAX_IRREGULAR * steps:
        return f"{without:,} of {steps:,} steps made no update that was seen: they are turns of the loop"
    if other > _MAX_IRREGULAR * steps:
        return f"{other:,} of {steps:,} steps took another number of turns than {usual}: updates come irregularly"
    return ""


def _greeting(effective: Mapping[str, Any], peers: Attached, directory: Path) -> str:
    way = f"{peers.backend} over {peers.transport}" if peers.workers > 1 else peers.backend
    unseen = (
        "" if peers.sync_seen else "; its waits for other workers are not seen, unless record.lap('sync') marks them"
    )
    return (
        f"recording {peers.workers} worker{'s' * (peers.workers > 1)} ({way}), {effective['model']} with "
        f"{effective['parameters']:,} parameters, into {os.path.relpath(directory)}{unseen}"
    )
