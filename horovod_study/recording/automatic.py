"""Records a training whose script has no line of this package: `horovod-study record -- COMMAND`.

Installed in every process that imports torch (inject/sitecustomize.py), it waits for a training and then does what
`recorder` does in a script:

    a step      one turn of the loop over the DataLoader in which an optimizer stepped; where no loader is looped over,
                from one update to the next; where no optimizer steps, from one backward to the next
    models      found by the parameters of the optimizers: the outermost module that holds them
    workers     those of the library that the script has started; nothing is sent through it, see comm/meeting.py
    evaluation  what goes through the model in eval mode without gradients, or over another loader, is in no step

It begins with the second update and ends when the process does, or when another training begins: optimizers that step
again and again while none of the recorded ones does. That one is recorded beside the first, and so are the trainings
of other processes of the command that no library connects with this one. An optimizer that joins late and alternates
with the others belongs to theirs. It never raises into the script: what goes wrong ends the recording, and the record
says why.
"""

import atexit
import functools
import gc
import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from horovod_study.errors import ConfigError, StudyError
from horovod_study.progress import say

if TYPE_CHECKING:
    from horovod_study.comm.meeting import Meeting
    from horovod_study.comm.observed import Observed
    from horovod_study.recording.hooks import Hooks
    from horovod_study.recording.recorder import Recording

_WATCHED_BACKWARDS = 4
"""So many backwards without an update by an optimizer: the script updates its parameters by itself."""
MAX_UPDATES = 20
"""So many updates without another batch from the loader: the loop is not one over the loader."""

LAUNCHES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "PMIX_NAMESPACE",
    "SLURM_STEP_ID",
)
"""What launchers set alike for all ranks that they start together, and differently for those of another start."""


def install(asked: str) -> "Watcher":
    """Watch for a training from now on; `asked` is the JSON text that `horovod-study record` leaves for it."""
    watcher = Watcher(json.loads(asked))
    watcher.install()
    return watcher


class Watcher:
    """Sees optimizers, loaders and backwards of this process, and keeps the record of its training."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._state = "watching"  # -> recording -> over
        self._record: Recording | None = None
        self._clock: Any = None  # of the record
        self._forward_seen = False  # whether hooks have ever seen one
        self._optimizers: dict[int, torch.optim.Optimizer] = {}  # by id, in the order in which they were seen
        self._updates: list[tuple[torch.optim.Optimizer, list[Any]]] = []  # so far, each with what was fetched for it
        self._turns: list[tuple[int, list[Any]]] = []  # at each of them: backwards so far, loops that fetched for it
        self._loops: list[weakref.ref[Any]] = []  # that gave a batch since the last update, once for each batch
        self._batch: Any = None  # the last one, until the record begins; then one that was fetched ahead of its loop
        self._backwards = 0
        self._depth = 0  # of optimizer steps inside each other, such as that of a wrapper
        self._fetched: list[Any] = []  # data sets that gave a batch since the last update
        self._data: Any = None  # the data set of the loader that is looped over, None: no loop over a loader
        self._since_fetch = 0  # updates since it gave a batch
        self._paused = True  # whether no stretch of steps is open
        self._ending = False  # whether the loader has ended before its last batch was trained on
        self._waits_since: Any = None
        self._started: Any = None  # when a loop over the data has begun that has fetched nothing yet
        self._loop: weakref.ref[Any] | None = None  # the iterator of the loop under way, which is gone when it is left
        self._loop_turns = 0  # batches that were asked of it
        self._loop_over = False  # whether it has given its last batch
        self._data_before: Any = None  # the data before those that are tried: none of their batches was trained on yet
        self._others: list[Any] = []  # data that were tried, and were no training's
        self._left_at: Any = None  # when the loop was left with nothing done in its last turn
        self._in_backward = 0  # backwards inside each other, as those of checkpoints are
        self._trains = False  # whether this turn has had a backward
        self._evaluates = False  # whether its model was called in eval mode without gradients
        self._hooks: dict[int, Hooks] = {}  # by the id of the optimizer
        self._strangers: list[torch.optim.Optimizer] = []  # that have stepped since one that is recorded
        self._training = 1  # which of the command
        self._thread = get_ident()  # that trains
        self._counts_calls = False  # whether samples are those with which the model is called
        self._observed: Observed | None = None  # calls in which the script itself waits for other ranks
        self._averages_in_backward = False  # which has a place of its own where the wait is seen
        self._meeting: Meeting | None = None

    _told_last = False  # whether it was said that a further training is not recorded

    @property
    def began(self) -> bool:
        """Whether a training was seen."""
        return self._state != "watching"

    def install(self) -> None:
        """Put the watcher where it sees every training of this process."""
        self._note("torch")
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)
        # All that autograd does for a gradient, `torch.autograd.grad` included, but for what a forward asks.
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._watched(getattr(torch.autograd, name), whole=name == "backward"))
        self._wrap_loader()
        os.register_at_fork(after_in_child=self._leave)
        atexit.register(self._finish)
        self._hook_errors()

    # ------------------------------------------------------------------------------------------------ what is seen

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(call)
        def safe(*arguments: Any) -> None:
            if self._state == "over" or (self._record is not None and self._record.failure is not None):
                return
            try:
                call(*arguments)
            except Exception as error:
                self._give_up(error)

        return safe

    def _watched(self, original: Callable[..., Any], *, whole: bool) -> Callable[..., Any]:
        before, after = self._guarded(self._before_backward), self._after_backward

        @functools.wraps(original)
        def gradients(*arguments: Any, **named: Any) -> Any:
            if self._in_backward or self._state == "over":
                return original(*arguments, **named)
            self._in_backward = 1
            try:
                if not self._forward_seen:
                    before()
                made = original(*arguments, **named)
            finally:
                self._in_backward = 0
            after(whole)
            return made

        return gradients

    def _wrap_loader(self) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        original = iterator.__next__
        before, after, ended = self._before_fetch, self._after_fetch, self._guarded(self._ended)

        @functools.wraps(original)
        def fetch(own: Any) -> Any:
            before(own)
            try:
                batch = original(own)
            except StopIteration:
                ended(own)
                raise
            after(own, batch)
            return batch

        iterator.__next__ = fetch
        self._wrap_start(dataloader.DataLoader)

    def _wrap_start(self, loader: Any) -> None:
        """See a loop begin: starting the loader's processes is waited for, too."""
        original, before = loader.__iter__, self._guarded(self._before_start)

        @functools.wraps(original)
        def start(own: Any) -> Any:
            before(own)
            return original(own)

        loader.__iter__ = start

    def _hook_errors(self) -> None:
        original = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if self._record is not None:  # of a training that failed
                with suppress(Exception):
                    self._record.__exit__(type(error), error, error.__traceback__)
            self._over()
            original(kind, error, trace)

        sys.excepthook = hook

    def _leave(self) -> None:
        """Leave the record to the parent of this fork; where it has none, the child may train, as a rank does."""
        if self._state == "watching":
            self._updates, self._turns, self._fetched, self._loops, self._backwards = [], [], [], [], 0
        else:
            self._state, self._record, self._hooks = "over", None, {}

    # ------------------------------------------------------------------------------------------------ updates

    # What is called in every step guards itself: a call less each.

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._depth += 1
        try:
            if self._depth == 1 and (hooks := self._hooks.get(id(optimizer))) is not None:
                hooks.before_update()
        except Exception as error:
            self._give_up(error)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0
        try:
            if self._record is None:
                if self._state == "watching":
                    self._watch_update(optimizer)
            elif self._record.failure is None:
                self._note_update(optimizer)
        except Exception as error:
            self._give_up(error)

    def _note_update(self, optimizer: torch.optim.Optimizer) -> None:
        hooks = self._hooks.get(id(optimizer))
        if hooks is None:
            self._strangers.append(optimizer)
            if len(self._strangers) >= 3:  # another training has begun
                self._begin_again()
            return
        hooks.after_update()
        self._since_fetch += 1
        if self._strangers:
            self._join()
        if self._ending:
            if self._loop is None or self._loop() is None:  # else the turn ends when the loop is left
                self._pause()
        elif self._data is not None and self._since_fetch > MAX_UPDATES:
            self._lose_data()  # one batch was fetched, and is used again and again
        if self._data is None and optimizer is self._first:
            self._next_step()

    def _join(self) -> None:
        """Record those optimizers, too, that have stepped between two updates of the known ones."""
        assert self._record is not None
        for optimizer in {id(each): each for each in self._strangers}.values():
            self._optimizers[id(optimizer)] = optimizer
            for model, own in self._pairs([optimizer]):
                self._record.join(model, own)
                if own is not None:
                    self._hooks[id(own)] = self._record.hooks[-1]
        self._strangers = []

    def _begin_again(self) -> None:
        """End the record, because its optimizers step no more while others do, and watch for the training of those."""
        record, self._strangers = self._record, []
        assert record is not None
        from horovod_study.records import MAX_TRAININGS

        if self._training == MAX_TRAININGS or self._asked.get("one_training"):
            if record.is_root and not self._told_last:
                _say_not_recorded(self._training)
            self._told_last = True
            return
        self._end_record(record)
        self._training += 1
        if self._observed is not None:
            self._observed.remove()
        if self._meeting is not None:
            self._meeting.close()
        self._record, self._observed, self._meeting, self._state = None, None, None, "watching"
        self._optimizers, self._hooks, self._updates, self._fetched, self._data = {}, {}, [], [], None
        self._turns, self._loops, self._batch = [], [], None
        self._loop_over, self._data_before, self._others = False, None, []
        self._forward_seen, self._paused, self._ending, self._backwards = False, True, False, 0
        self._loop = self._left_at = None

    @property
    def _out(self) -> Path:
        """The run directory of this training."""
        from horovod_study.records import training_directory

        return training_directory(Path(self._asked["out"]), self._training)

    @property
    def _first(self) -> torch.optim.Optimizer:
        return next(iter(self._optimizers.values()))

    def _watch_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin to record when an optimizer steps again: those that stepped since are trained, in turns over its data.

        What stepped before and never again, such as an optimizer whose state was broadcast, is not one of them.
        """
        self._thread = get_ident()
        before = next((place for place, (each, _) in enumerate(self._updates) if each is optimizer), None)
        self._updates.append((optimizer, self._fetched))
        self._turns.append((self._backwards, [each() for each in self._loops]))
        self._fetched, self._loops = [], []
        if before is None:
            return
        self._optimizers = {id(each): each for each, _ in self._updates[before:]}
        self._data = next((data for _, fetched in self._updates[before + 1 :] for data in fetched), None)
        if not self._fetches_ahead(before):
            self._batch = None
        self._updates, self._turns = [], []
        self._open()

    def _fetches_ahead(self, before: int) -> bool:
        """Return whether the loop has a batch more than it has trained on: its first turn fetched two.

        Such are loops that look whether a batch is the last one, as Accelerate's; `before`: the last update but one of
        the optimizer that has just stepped.
        """
        loop = next((each for _, loops in reversed(self._turns) for each in loops), None)
        backwards = [0, *(made for made, _ in self._turns)]
        first, second = (
            sum(each is loop for _, loops in turns for each in loops)
            for turns in (self._turns[: before + 1], self._turns[before + 1 :])
        )
        alike = 2 * backwards[before + 1] == backwards[0] + backwards[-1]
        return loop is not None and first == second + 1 and alike

    # ------------------------------------------------------------------------------------------------ backwards

    def _before_backward(self) -> None:
        record = self._record
        if record is not None and record.in_step:
            self._forward_seen = any(each.forwards for each in record.hooks)
            if not self._forward_seen:
                record.part("residual")  # forward was not seen, and is not taken for backward

    def _after_backward(self, whole: bool) -> None:
        record = self._record
        try:
            if record is None:
                if whole and self._state == "watching":
                    self._backwards += 1
                    if self._updates:
                        return
                    if self._backwards < _WATCHED_BACKWARDS:
                        self._fetched = []
                    elif not _any(torch.optim.Optimizer):
                        self._data = self._fetched[0] if self._fetched else None
                        self._open()
            elif record.in_step:
                for hooks in record.hooks:
                    if True in hooks.under_way:
                        return
                self._trains, self._data_before = True, None
                record.end_backward()
                if not self._optimizers and self._data is None and whole:
                    self._next_step()
        except Exception as error:
            self._give_up(error)

    # ------------------------------------------------------------------------------------------------ waits

    def _before_wait(self) -> None:
        record = self._record
        if record is not None and record.in_step and not (self._averages_in_backward and self._in_backward):
            record.part(self._phase(record))

    def _after_wait(self) -> None:
        record = self._record
        if record is not None and record.in_step and not (self._averages_in_backward and self._in_backward):
            record.part("sync")

    def _phase(self, record: "Recording") -> str:
        if self._in_backward:
            return "backward"
        if self._depth:
            return "update"
        return "forward" if any(True in each.under_way for each in record.hooks) else "residual"

    # ------------------------------------------------------------------------------------------------ loaders

    def _before_start(self, loader: Any) -> None:
        record = self._record
        if record is None or self._data is None or self._thread != get_ident():
            return
        self._settle_trial()
        if loader.dataset is not self._data and not self._try(loader.dataset):
            return
        if self._left_at is not None:
            self._end_left()
        if self._paused or (self._ending and record.updated):
            self._resume()
            self._started = record.mark()

    def _before_fetch(self, iterator: Any) -> None:
        record = self._record
        if record is None or record.failure is not None:
            return
        try:
            if self._thread != get_ident():
                return
            if self._left_at is not None:
                self._end_left()
            if self._data_before is not None:
                self._settle_trial()
            if self._data is None or (iterator._dataset is not self._data and not self._try(iterator._dataset)):
                if record.updated and not self._paused:  # a loop over other data: an evaluation
                    self._pause()
                elif record.in_step:
                    record.part(self._phase(record))
                return
            self._since_fetch = self._depth = 0
            if self._loop is None or self._loop() is not iterator:
                self._loop, self._loop_turns = weakref.ref(iterator, self._guarded(self._left)), 0
                self._loop_over = False
            self._loop_turns += 1
            if self._paused or self._ending:
                self._resume()
                if self._batch is not None:
                    record.take_ahead(self._batch)
                    self._batch = None
            elif record.in_step:
                self._turn()
            self._trains = self._evaluates = False
            self._waits_since, self._started = self._started or self._clock.mark(), None
        except Exception as error:
            self._give_up(error)

    def _after_fetch(self, iterator: Any, batch: Any) -> None:
        record = self._record
        if self._thread != get_ident():  # whoever fetches ahead in a thread of its own waits beside the training
            return
        try:
            if record is None:
                if self._state == "watching":
                    self._loops.append(weakref.ref(iterator))
                    self._batch = batch
                    if all(data is not iterator._dataset for data in self._fetched):
                        self._fetched.append(iterator._dataset)
            elif self._data is not None and iterator._dataset is self._data and not self._paused:
                if record.failure is None:
                    record.begin_turn(batch, self._waits_since)
            elif record.in_step and not record.updated:
                record.part("data")  # of another loader, as where two are gone through together
        except Exception as error:
            self._give_up(error)

    def _ended(self, iterator: Any) -> None:
        if self._record is None:
            self._fetched = [data for data in self._fetched if data is not iterator._dataset]
            self._batch = None
        elif self._data is iterator._dataset and not self._paused and self._thread == get_ident():
            self._loop_over = True
            # A loop that fetches ahead of its training has its last batch still before it.
            if self._record.ahead and not self._record.in_step:
                self._record.begin_step(self._waits_since)
            self._ending = self._record.in_step and not self._record.updated
            if not self._ending:
                self._record.end_loop(self._waits_since)
                self._pause()

    def _try(self, data: Any) -> bool:
        """Take `data` for those of the training, which may be made again for each epoch or each file of a set.

        So they are where the loop over the former ones is over and the model is ready to train. Where their first batch
        is not trained on, it was an evaluation (`_settle_trial`).
        """
        record = self._record
        assert record is not None
        under_way = self._loop is not None and self._loop() is not None and not self._loop_over
        if under_way or (record.in_step and not record.updated) or type(data) is not type(self._data):
            return False
        if not (torch.is_grad_enabled() and record.hooks[0].model.training) or any(
            data is each for each in self._others
        ):
            return False
        self._pause()
        self._data_before, self._data, self._waits_since = self._data, data, None
        return True

    def _settle_trial(self) -> None:
        """Go back to the data before those that were tried, where a batch of these was not trained on."""
        if self._data_before is None or self._waits_since is None or self._trains:
            return
        assert self._record is not None
        self._pause()
        self._record.drop_epoch()
        self._others = [*self._others[-15:], self._data]
        self._data, self._data_before = self._data_before, None

    def _left(self, iterator: Any) -> None:
        """End the last turn of a loop whose iterator is gone: after `break`, or behind the turn of its last batch.

        An iterator that gave one batch is no loop's, as in `next(iter(loader))`. One that a function held until long
        after the loop says nothing of its end: a tail of more than three times the rest of its turn is none.
        """
        record, clock = self._record, self._clock
        if iterator is not self._loop or record is None or self._data is None or self._paused:
            return
        if self._loop_turns < 2 or self._thread != get_ident() or not (record.in_step and clock.takes_stamps):
            return
        if record.updated:
            left, done = clock.mark(), clock.host_s()
            if clock.host_s(left) - done <= 3 * (done - clock.host_s(self._waits_since)):
                clock.lap("residual", at=left)
                record.end_turn()
                self._pause()
        elif record.untrained:
            self._left_at = record.mark()

    def _end_left(self) -> None:
        """End a loop that was left, unless its last turn was trained on after all."""
        assert self._record is not None
        if self._record.untrained:
            self._pause()
        self._left_at = None

    # ------------------------------------------------------------------------------------------------ the record

    def _open(self) -> None:
        """Begin to record: the training is known. Collective over the ranks, through files."""
        if self._training == 1 and _other_recorder():  # in a later training of a process it is that of the first
            self._note("own recorder")
            self._over()
            return
        # What the recorder needs takes a second to import: only a process that trains pays for it.
        from dataclasses import replace

        from horovod_study.comm.attached import attach
        from horovod_study.comm.meeting import Meeting
        from horovod_study.comm.observed import Observed
        from horovod_study.recording.recorder import Recording, batch_samples
        from horovod_study.recording.session import RecordOptions

        self._note("training")
        pairs = self._pairs(self._optimizers.values())
        model, optimizer = pairs[0]
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        peers = attach(model, optimizer, on_gpu=device.type == "cuda")
        if peers.backend in ("distributed", "ddp", "horovod") and peers.workers > 1 and device.type == "cpu":
            self._observed = Observed(self._guarded(self._before_wait), self._guarded(self._after_wait))
            self._averages_in_backward = peers.reduction != "own"
        folder = self._find_place(peers.rank, peers.workers)
        if folder is None:
            if peers.rank == 0:
                _say_not_recorded(self._training)
            self._over()
            return
        if self._training > 1 and peers.rank == 0:
            say(
                f"horovod-study record: training {self._training} of this command has begun, in process {os.getpid()}; "
                f"it is recorded in {os.path.relpath(self._out)}"
            )
        self._meeting = Meeting(folder, peers.rank, peers.workers)
        self._record = Recording(
            model,
            optimizer,
            out=self._out,
            options=RecordOptions.read(self._asked["options"], source="record"),
            batch=self._asked["batch"],
            model_name=self._asked["model_name"]
            or (Path(sys.argv[0]).name if isinstance(model, _LooseParameters) else None),
            own=self._asked["own"],
            peers=replace(peers, gather=self._meeting.all_values, waits_seen=self._observed is not None),
            beside=pairs[1:],
            count_samples=functools.partial(_or_length, batch_samples),
            told=True,
            requested=self._asked.get("requested", {}),
        )
        self._record.least = self._asked.get("steps") or None
        if hasattr(self._data, "__len__"):
            self._record.train_samples = len(self._data)
        self._record.__enter__()
        if multiprocessing.parent_process() is not None:
            Finalize(None, self._finish, exitpriority=100)  # such a process ends without what atexit has
        self._state, self._clock = "recording", self._record.clock
        if self._observed is not None and not self._averages_in_backward and not _any(DistributedDataParallel):
            self._clock.know("sync")  # all waits are seen: a step without one had none
        watched = zip(pairs, self._record.hooks, strict=True)
        self._hooks = {id(own): hooks for (_, own), hooks in watched if own is not None}
        self._record.hooks[0].outside = self._guarded(self._before_forward)
        if self._data is None:
            self._lose_data()
            self._resume()
            self._record.begin()

    def _find_place(self, rank: int, workers: int) -> Path | None:
        """Find out which training of the command this is; return the folder of its ranks, None for one too many.

        Ranks that train together come to the same place without a word: each takes the first that nobody of its rank
        has taken, among those of its own launch. A link is made at once with what it says, also on a file server.
        """
        from horovod_study.records import MAX_TRAININGS

        meeting = Path(self._asked["meeting"])
        if self._asked.get("one_training") or not meeting.is_dir():
            return meeting
        alone = [os.uname().nodename, os.getpid()] if workers == 1 else []
        launch = json.dumps([workers, *alone, *map(os.environ.get, LAUNCHES)])
        try:
            for number in range(self._training, MAX_TRAININGS + 1):
                folder = meeting / f"training-{number}"
                folder.mkdir(exist_ok=True)
                if (_link(folder / "launch", launch) or os.readlink(folder / "launch") == launch) and _link(
                    folder / f"taken-{rank}", str(os.getpid())
                ):
                    self._training = number
                    return folder
        except OSError:  # a file system without links: this training is taken for the only one
            return meeting / f"training-{self._training}"
        self._training = MAX_TRAININGS
        return None

    def _lose_data(self) -> None:
        """Go on without a loader: samples are counted where the model is called."""
        self._data = None
        if self._record is not None:
            self._record.hooks[0].all_outside = True

    def _before_forward(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """See evaluations between steps, and the first forward after one; count samples that came from no loader."""
        record = self._record
        if record is None:
            return
        if not torch.is_grad_enabled() and not module.training:
            self._evaluates = True
            if self._left_at is not None:
                self._end_left()
            if not self._paused and (record.updated or self._data is None):
                self._pause()
        elif self._data is None and torch.is_grad_enabled():
            if self._paused:
                self._resume()
                record.begin()
            again = self._depth and record.counted  # an optimizer that looks at one batch several times, as LBFGS does
            if record.in_step and self._asked["batch"] is None and not again:
                record.count(_as_batch(module, [*given, *named.values()]))
                self._counts_calls = True

    def _next_step(self) -> None:
        """End the step and begin the next one, where no loader is looped over."""
        assert self._record is not None
        if self._paused:
            self._resume()
        else:
            self._turn()
        if not self._record.in_step:
            self._record.begin()

    def _turn(self) -> None:
        """End a turn of the loop, and the training where it has made the steps that were asked for."""
        record = self._record
        assert record is not None
        if self._evaluates and not (self._trains or record.updated or self._data is None):
            self._pause()  # an evaluation over the same data
            self._resume(epoch=False)
            return
        record.end_turn()
        # a model that was not called in so many steps is a container; the models in it are
        if record.made == 3:
            for hooks in record.hooks:
                for module in () if hooks.forwards else hooks.model.children():
                    if any(parameter.requires_grad for parameter in module.parameters()):
                        hooks.watch_forward(module)
        if record.ended or (record.least is not None and record.made >= record.least and record.alone):
            raise SystemExit

    def _pause(self) -> None:
        """End a stretch of steps."""
        record = self._record
        assert record is not None
        if self._left_at is not None and record.untrained:
            record.end_before(self._left_at)
        record.close_step()
        self._paused, self._ending, self._started, self._left_at = True, False, None, None

    def _resume(self, *, epoch: bool = True) -> None:
        assert self._record is not None
        if self._data is None or not epoch:
            self._record.open_stretch()
        else:
            self._record.begin_epoch()
        self._paused = self._ending = False

    def _pairs(
        self, optimizers: Iterable[torch.optim.Optimizer]
    ) -> list[tuple[nn.Module, torch.optim.Optimizer | None]]:
        """Return each optimizer with its model, and the further models that it trains, as a decoder, without one.

        Without optimizers, the models that have gradients.
        """
        pairs: list[tuple[nn.Module, torch.optim.Optimizer | None]] = []
        beside: list[nn.Module] = []
        for optimizer in optimizers:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            models = models_of(set(map(id, parameters))) or [_LooseParameters(parameters)]
            pairs.append((models[0], optimizer))
            beside += models[1:]
        if not pairs:
            beside = _with_gradients()
        known = {id(model) for model, _ in pairs}
        return pairs + [
            (model, None) for model in {id(each): each for each in beside}.values() if id(model) not in known
        ]

    # ------------------------------------------------------------------------------------------------ the end

    def _finish(self) -> None:
        """End the record in good order; the process is about to end."""
        if self._record is None:
            self._state = "over"
            return
        try:
            self._end_record(self._record)
        except Exception as error:
            say(f"horovod-study record: {error}")
        self._over()

    def _end_record(self, record: "Recording") -> None:
        root, counts, self._counts_calls = record.is_root, self._counts_calls, False
        record.__exit__(None, None, None)
        if root and counts and record.failure is None:
            say(
                "note: samples are the first dimension of what the model was called with, because no loader was looped "
                "over; where that is not the batch, --batch N says it"
            )

    def _give_up(self, error: Exception) -> None:
        """End the recording because of an error of its own; the training goes on."""
        if self._state == "recording" and self._record is not None:
            self._record.give_up(error)  # closed at the end, together with the other ranks
            return
        why = str(error) if isinstance(error, StudyError) else f"{type(error).__name__}: {error}"
        say(f"horovod-study record: recording has stopped, training goes on: {why}")
        self._note("stopped", why)
        self._over()

    def _over(self) -> None:
        self._state, self._record = "over", None  # hooks stay and do nothing: one of them may be running
        if self._observed is not None:
            self._observed.remove()
        if self._meeting is not None:
            self._meeting.close(remove=self._asked.get("remove_meeting", False))

    def _note(self, what: str, why: str = "") -> None:
        """Leave a word for `horovod-study record` on how far this process has come."""
        with suppress(OSError), open(Path(self._asked["meeting"]) / "seen", "a", encoding="utf-8") as stream:
            stream.write(json.dumps([what, why]) + "\n")


class _LooseParameters(nn.Module):
    """Parameters that are in no module."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # A tensor that is none itself shares its values with the one that stands for it here.
        self.all = nn.ParameterList(
            each if isinstance(each, nn.Parameter) else nn.Parameter(each.detach(), requires_grad=each.requires_grad)
            for each in parameters
        )


def _link(place: Path, text: str) -> bool:
    """Make a link that says `text`; return False where there is one already."""
    try:
        os.symlink(text, place)
    except FileExistsError:
        return False
    return True


def _say_not_recorded(trainings: int) -> None:
    say(f"horovod-study record: a training after {trainings} of this command is not recorded")


def _any(kind: type) -> bool:
    return any(issubclass(type(each), kind) for each in gc.get_objects())


def _modules() -> list[nn.Module]:
    return [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]


def _other_recorder() -> bool:
    """Return whether the script is recorded by lines of its own, or is the package's own trainer."""
    return any(name in sys.modules for name in ("horovod_study.recording.session", "horovod_study.train"))


def models_of(wanted: set[int]) -> list[nn.Module]:
    """Return the outermost modules that hold the parameters with these ids; first the one that holds most of them."""
    modules = _modules()
    inside = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [(each, set(map(id, each.parameters()))) for each in modules if id(each) not in inside]
    found: list[nn.Module] = []
    left = set(wanted)
    while left and outermost:
        module, own = max(outermost, key=lambda each: (len(each[1] & left), -len(each[1] - wanted)))
        if not own & left:
            break
        found.append(module)
        left -= own
    return found


def _with_gradients() -> list[nn.Module]:
    """Return the outermost modules whose parameters have gradients; where none has, what else has some, as one."""
    wanted = {
        id(each)
        for module in _modules()
        for each in module._parameters.values()
        if each is not None and each.grad is not None
    }
    return models_of(wanted) or [
        _LooseParameters(
            each
            for each in gc.get_objects()
            if issubclass(type(each), torch.Tensor) and each.is_leaf and each.requires_grad and each.grad is not None
        )
    ]


def _as_batch(model: nn.Module, given: list[Any]) -> list[Any]:
    """Return what a model was called with; a vector with the features of a layer of it is one sample, and no batch."""
    first = next((each for each in given if isinstance(each, torch.Tensor)), None)
    if first is None or first.ndim != 1 or not first.is_floating_point():
        return given
    one = any(isinstance(each, nn.Linear) and each.in_features == len(first) for each in model.modules())
    return [first[None]] if one else given


def _or_length(batch_samples: Callable[[Any], int], batch: Any) -> int:
    """Return how many samples a batch holds: its first dimension, or its length where it holds no tensor."""
    try:
        return batch_samples(batch)
    except ConfigError:
        with suppress(TypeError):
            return len(batch)
        raise
