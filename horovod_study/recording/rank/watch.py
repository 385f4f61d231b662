"""Sees a training that has no line of this package, and notes what happens in it.

Hooks of PyTorch's own tell of it: optimizers step, a DataLoader gives a batch, autograd makes gradients; from the
second update on also that the model is called and that the script waits for other ranks. They note events (events.py)
and decide nothing: what a step is, is found out afterwards (recording/steps.py).

All hooks go through one door, which Dynamo never enters, and behind which nothing is raised into the script: what goes
wrong ends the recording, and the record says why.
"""

from __future__ import annotations

import atexit
import copyreg
import functools
import itertools
import json
import math
import multiprocessing
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.util import Finalize
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn
from torch.compiler import is_dynamo_compiling as is_compiling  # one call less than is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from horovod_study.recording.rank import facts
from horovod_study.recording.rank.events import CALLS, DATA_SETS, NUMBER, DeviceLog, Log, Stacks, StrictLog, now, wall
from horovod_study.recording.rank.turns import Turns, connect

_START, _FETCH, _BATCH, _ENDED, _LEFT = (NUMBER[name] for name in ("start", "fetch", "batch", "ended", "left"))
_FORWARD, _FORWARDED, _BACKWARD, _GRADIENT = (NUMBER[name] for name in ("forward", "forwarded", "backward", "gradient"))
_BACKWARDED, _UPDATE, _UPDATED = (NUMBER[name] for name in ("backwarded", "update", "updated"))
_SYNC, _SYNCED, _PAUSE, _RESUME = (NUMBER[name] for name in ("sync", "synced", "pause", "resume"))
_CHANGED, _OPENED, _CALLED = (NUMBER[name] for name in ("changed", "opened", "called"))
_SAVE, _SAVED, _EVAL = NUMBER["save"], NUMBER["saved"], NUMBER["eval"]

_LOOKED_AT = 3
"""After so many backwards and batches without an update that was seen, parameters are looked at for a change."""
_FEW_STEPS = 3  # so many tell what a training computes in, which model is called, and which gradients come last
_KEPT = 2  # so many of the last gradients of a backward stay watched: the order of the last may change
_MORE_UPDATES = 20  # so many updates more than ever in a turn of the loop over the loader: the loop is over
_STRANGERS = 3
"""So many updates by optimizers that are not recorded, and none by those that are: another training has begun."""


class Door:
    """What PyTorch is given to call. Dynamo finds nothing behind it, and the training no error.

    Copies and pickles of a model are without it: whoever loads them may have nothing of this package. The hooks of a
    module are in an `OrderedDict`, from which `_without_doors` leaves them out; elsewhere something of the standard
    library, which takes anything and does nothing, stands in its place.
    """

    __slots__ = ("_call", "_failed")

    def __init__(self, call: Callable[..., Any], failed: Callable[[Exception], None]) -> None:
        self._call, self._failed = call, failed

    def __call__(self, *given: Any) -> None:
        if is_compiling():
            return
        try:
            self._call(*given)
        except Exception as error:
            self._failed(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def _without_doors(values: OrderedDict[Any, Any]) -> Any:
    """Return what makes a copy of an ordered dictionary, as it would be copied and pickled but for doors."""
    made = values.__reduce__()
    if not any(isinstance(each, Door) for each in values.values()):
        return made
    return (*made[:4], iter([(name, each) for name, each in values.items() if not isinstance(each, Door)]))


class Watcher:
    """Notes the events of the training of this process."""

    __slots__ = (
        *("state", "_thread", "_note", "_log", "_fetching", "_in_backward", "_in_forward", "_in_update", "_what"),
        *("_in_loop", "_fresh", "_updates", "_most", "_due", "made", "_samples", "_second", "_learning", "_places"),
        *("_optimizers", "_strangers", "_first", "_last", "_run", "_longest", "_patience", "_counted"),
        *("__dict__", "__weakref__"),
    )
    _told = False  # whether a script tells of its loops itself
    ended = False  # whether whoever gives turns wants no more steps of a loop that is told

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._limit: float = asked.get("steps") or math.inf  # after so many the training is ended
        self.state = "watching"  # -> recording -> over
        self._training = 1  # which of this process
        self._thread: int | None = None  # that trains
        self._undo: list[Callable[[], None]] = []
        self._data: dict[Any, int] = {}  # what is known again of a data set -> its number
        self._lengths: list[int | None] = []  # samples of each
        self._loops = 0  # over a loader, so far
        self._more = False
        self._fetching = False  # whether a batch is asked for
        self._loop: Any = None  # a reference to the newest, which says when it is gone
        self._timed = not (self._told and asked["options"]["timer_mode"] == "off")
        self.failure: Exception | None = None  # why the recording has stopped before the training
        self._begin()

    def _begin(self) -> None:
        """Know nothing of a training."""
        self._log = Log()
        self._note = self._log.note
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._first: torch.optim.Optimizer | None = None
        self._last: torch.optim.Optimizer | None = None  # that has stepped
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that were there when it was opened
        self._seen: list[torch.optim.Optimizer] = []  # that have stepped, until it is open
        self._models: list[nn.Module] = []
        self._strangers: list[torch.optim.Optimizer] = []
        self._patience, self._run, self._longest = _STRANGERS, 0, 0  # updates of one optimizer, one after the other
        self._places: dict[int, int] = {}  # id of an optimizer -> which it is
        self._parameters: set[int] = set()  # ids
        self._probe: torch.Tensor | None = None  # a parameter
        self._version: Any = None  # what it was like
        self._probes: list[tuple[torch.Tensor, Any]] = []
        self._looked, self._look_next = 0, _LOOKED_AT
        self._unseen = 0  # backwards and batches without an update that was seen
        self._in_update = self._in_forward = self._in_backward = self._in_call = 0
        self._what = 0  # how the model was called last
        self._second = False  # the batch is the second dimension of what the model takes
        self._given: Any = None  # the first tensor that the model was called with, in the first steps
        self._early: list[Callable[[], None]] = []  # take away the hooks of the first steps
        self._vectors: dict[int, bool] = {}  # features -> whether a vector of so many is one sample
        self._counted = 0  # of them in this turn, while no loop is known
        self.made = 0  # steps so far, as they are counted while it goes on: for their limit, and for turns
        self._samples = 0
        self._updates, self._in_loop, self._fresh = 0, False, True
        self._most: float = 0
        self._due: float = math.inf
        self._turns: Turns | None = None
        self._began_s = 0.0  # when it was opened, and what it has waited since
        self._open_ends: list[Callable[[], None]] = []  # end what nobody may wait for any more
        self._precision: facts.PrecisionObserver | None = None
        self._called: set[int] = set()  # ids of models
        self._counting: int | None = None  # id of the one whose samples are counted where no loader gives them
        self._elsewhere = 0  # batches that another thread has fetched
        self._order: list[int] = []
        self._last_ones: set[int] = set()
        self._learning: dict[int, Callable[[], None]] = {}
        self._learnt = 0

    def install(self) -> None:
        """Put the hooks where they see every training of this process."""
        self._report("seen", "torch")
        register_optimizer_step_pre_hook(Door(self._before_update, self.give_up))
        register_optimizer_step_post_hook(Door(self._after_update, self.give_up))
        # All that autograd does for a gradient, `torch.autograd.grad` included.
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._watched_backward(getattr(torch.autograd, name)))
        iterator: Any = dataloader._BaseDataLoaderIter
        iterator.__next__ = self._watched_fetch(iterator.__next__)
        # Starting the processes of a loader is waited for, too.
        self._around(dataloader.DataLoader, "__iter__", self._before_start)
        os.register_at_fork(after_in_child=self._leave)
        atexit.register(self.finish)
        self._around(sys, "excepthook", self._before_error)
        torch.jit.script = self._without_hooks(torch.jit.script)
        self._around(torch, "save", lambda *_: self._note_aside(_SAVE), lambda: self._note_aside(_SAVED))

    def _around(
        self, place: Any, name: str, before: Callable[..., None], after: Any = lambda: None, *, once: bool = False
    ) -> None:
        """Have `before` see what a function is given from now on, and `after` that it has ended.

        `once`: of calls inside each other the outermost one alone, and until the training has ended.
        """
        own, original = name in vars(place), getattr(place, name)
        entering, leaving = Door(before, self.give_up), Door(after, self.give_up)

        @functools.wraps(original)
        def observed(*given: Any, **named: Any) -> Any:
            if once and (is_compiling() or self._in_call or self.state != "recording"):
                return original(*given, **named)
            self._in_call += once
            entering(*given, *named.values())
            try:
                return original(*given, **named)
            finally:
                if once:
                    self._in_call = 0
                leaving()

        setattr(place, name, observed)
        if once:  # a method of an object's class goes back there
            self._undo.append(lambda: setattr(place, name, original) if own else delattr(place, name))

    def _note_aside(self, kind: int) -> None:
        """Note what is no part of a step."""
        if self.state == "recording" and self._here():
            self._note(kind)

    # ------------------------------------------------------------------------------------------------ updates

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.state == "watching":
            self._thread = get_ident()  # a look at the model may have made backwards in another one
        self._in_update += 1
        if self._in_update == 1 and self._thread == get_ident() and not self._fetching:
            self._note(_UPDATE)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._in_update -= 1
        if self._in_update > 0 or self.state == "over":
            return
        self._in_update = 0
        if self._fetching or self._thread != get_ident():
            if not self._fetching:
                if not self._more:  # said once: this process trains what is not recorded
                    self._report("more", True)
                self._more = True
            return
        if self.state == "watching":
            self._note(_UPDATED)
            self._unseen = 0
            self._watch_update(optimizer)
            return
        place = self._places.get(id(optimizer))
        if place is None:  # in the order in which they step first; one made again for each task is the first
            again = optimizer not in self._alive and _kind_of(optimizer) == _kind_of(self._first)
            place = self._places[id(optimizer)] = 0 if again else len(self._places)
        self._note(_UPDATED, place)
        most = _MORE_UPDATES + self._most
        if optimizer is self._last and self._in_loop and self._updates < most and not self._strangers:
            self._updates += 1
            self._run += 1
            self._log.write()
        else:
            self._note_update(optimizer)

    def _here(self) -> bool:
        """Return whether this is the thread that trains, and not in the midst of making a batch."""
        if self._thread is None:
            self._thread = get_ident()
        return self._thread == get_ident() and not self._fetching

    def _watch_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Open the log when an optimizer steps again: those that stepped since are trained, in turns over its data."""
        before = next((place for place, each in enumerate(self._seen) if each is optimizer), None)
        self._seen.append(optimizer)
        if before is not None:
            self._open(self._seen[before:])

    def _note_update(self, optimizer: torch.optim.Optimizer) -> None:
        """See to an update that is not like the one before it."""
        self._longest = max(self._longest, self._run)
        if len(self._optimizers) > 1:
            # where several step one after the other: twice the longest run of one of them
            self._patience = max(_STRANGERS, min(2 * self._longest, 100))
        if id(optimizer) not in self._optimizers and not self._is_of_training(optimizer):
            self._strangers.append(optimizer)
            if len(self._strangers) < self._patience:
                return
            if self.made > self._asked["options"]["warmup_steps"]:
                self._begin_again()
                return
        if self._strangers:  # they step in turns with those that are known
            self._join(self._strangers)
            self._strangers = []
        self._log.write()
        self._updates += 1
        if self._in_loop and self._updates > _MORE_UPDATES + self._most:
            self._in_loop = False
        ends = optimizer is self._first or optimizer is self._last
        self._run = self._run + 1 if optimizer is self._last else 1
        self._last = optimizer
        if not self._in_loop and ends:
            self._counted += 1
            self._step()

    def _is_of_training(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take up an optimizer that was made again for the same parameters, or was there and has another phase."""
        own = set(map(id, _held_by(optimizer)))
        if not self._optimizers:  # the training was found without an update
            self._first = optimizer
        elif own & self._parameters:
            self._places[id(optimizer)] = 0
        elif optimizer in self._alive:
            self._join([optimizer])
            return True
        else:
            return False
        self._optimizers[id(optimizer)] = optimizer
        return True

    # ------------------------------------------------------------------------------------------------ backwards

    def _watched_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradients(*given: Any, **named: Any) -> Any:
            if is_compiling() or self._in_backward or self.state == "over" or self._fetching:
                return original(*given, **named)
            if self._thread is None:
                self._thread = get_ident()
            if self._thread != get_ident():
                return original(*given, **named)
            self._in_backward = 1
            try:
                self._note(_BACKWARD)
            except Exception as error:
                self.give_up(error)
            try:
                return original(*given, **named)
            finally:
                self._in_backward = 0
                try:
                    if self.state != "over":
                        self._note(_BACKWARDED)
                        if self._learning or not self._optimizers:
                            self._after_backward()
                except Exception as error:
                    self.give_up(error)

        return gradients

    def _after_backward(self) -> None:
        if self._learning:  # the hooks of those gradients alone stay that come last
            self._last_ones.update(self._order[-_KEPT:])
            del self._order[:]
            self._learnt += 1
            if self._learnt == _FEW_STEPS:
                for number, undo in self._learning.items():
                    if number not in self._last_ones:
                        undo()
                self._learning = {}
        if self.state == "watching":
            # A compiler that traces calls autograd, too.
            if not (self._seen or self._in_update or torch._C._len_torch_dispatch_stack()):
                self._look_for_change(backward=True)
        elif not self._optimizers and not self._in_loop:
            self._notice_change()
            self._log.write()
            self._step()

    def _look_for_change(self, *, backward: bool) -> None:
        """Open the log where parameters change although no optimizer was seen to step: in compiled code, or without.

        Looking takes a while: it is done after 3, 6, 12 ... backwards and batches, and compared at the two that follow;
        after 2 batches without a backward, which may all be in compiled code.
        """
        self._unseen += 1
        if self._unseen == self._look_next or (self._unseen == 2 and not backward):
            self._looked, self._look_next = self._unseen, max(2 * self._unseen, 2 * _LOOKED_AT)
            leaves = (each for each in facts.objects(torch.Tensor) if each.is_leaf and each.requires_grad)
            self._probes = [(each, _state(each)) for each in itertools.islice(leaves, 256)]
            return
        if not self._probes or self._unseen > self._looked + 2:
            return
        others = [each for each, before in self._probes if _state(each) != before]
        optimizers = facts.objects(torch.optim.Optimizer)
        # One will step: other tensors, such as inputs that are attacked, are not trained.
        changed = {id(each) for each in others if isinstance(each, nn.Parameter) or not optimizers}
        if changed or (backward and self._unseen >= 64):  # a step although no parameter was seen to change
            owners = [each for each in optimizers if changed & set(map(id, _held_by(each)))]
            self._open(owners, changed=changed)

    def _notice_change(self) -> None:
        """Note that the parameters are others than at the last look."""
        if self._probe is not None and (state := _state(self._probe, on_gpu=False)) != self._version:
            self._version = state
            self._note(_CHANGED)

    # ------------------------------------------------------------------------------------------------ loaders

    def _watched_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        before, after, failed = self._before_fetch, self._after_fetch, self.give_up
        ended = Door(lambda: self._note(_ENDED), failed)

        @functools.wraps(original)
        def fetch(own: Any) -> Any:
            if self.state == "over" or is_compiling():
                return original(own)
            if self._thread is not None and self._thread != get_ident():
                self._elsewhere += 1
                return original(own)
            try:
                before(own)
            except Exception as error:
                failed(error)
            self._fetching = True
            try:
                batch = original(own)
            except StopIteration:
                ended()
                own._horovod_study = None
                raise
            finally:
                self._fetching = False
            try:
                after(own, batch)
            except Exception as error:
                failed(error)
            return batch

        return fetch

    def _before_start(self, loader: Any) -> None:
        if self.state != "over" and self._thread in (None, get_ident()):
            self._note(_START, self._number_of(loader.dataset))

    def _number_of(self, data: Any) -> int:
        key = (id(data), type(data))
        if key not in self._data:
            if len(self._data) + 1 == DATA_SETS:
                return 0
            self._data[key] = len(self._data)
            self._lengths.append(None)
            with suppress(Exception):
                self._lengths[-1] = len(data)
        return self._data[key]

    def _turn(self) -> None:
        """Count a step where the turn of the loop that is over has made an update."""
        if self._fresh:
            self._fresh, self._updates = False, 0
        elif self._updates:
            self._most, self._updates = max(self._most, self._updates), 0
            if self._in_loop:
                self.made += 1
                if self.made >= self._due:
                    self._reach()
            else:  # its updates were counted, before it was known that there is a loop
                self.made -= self._counted - 1
                self._in_loop = True
        self._counted = 0

    def _before_fetch(self, iterator: Any) -> None:
        self._in_update = 0  # that of an update that has raised an error, which the script may have caught
        if self.state == "recording":
            if not self._optimizers:
                self._notice_change()
                self._log.write()
            if self._fresh or self._updates:
                self._turn()
            elif not self._optimizers:
                self._in_loop = True
                self._step()
        elif not self._seen:
            self._look_for_change(backward=False)
        turn = getattr(iterator, "_horovod_study", None)  # which loop it is of; another one where it begins again
        if turn is None:
            self._loops += 1
            turn = iterator._horovod_study = self._loops * DATA_SETS + self._number_of(iterator._dataset)

            def gone(_: Any) -> None:
                if self.state != "over" and self._here():
                    self._note(_LEFT, turn)

            self._loop = weakref.ref(iterator, Door(gone, self.give_up))
        self._note(_FETCH, turn)

    def _before_mode(self, module: nn.Module, mode: bool = True) -> None:
        """See that a model is put into eval mode: what generates may call parts of it alone."""
        if not mode and module.training and any(each is own for each in module.modules() for own in self._models):
            self._note_aside(_EVAL)

    def _after_fetch(self, iterator: Any, batch: Any) -> None:
        size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        samples = facts.samples_of(batch, size=size if isinstance(size, int) else None, second=self._second)
        self._samples += samples
        self._note(_BATCH, samples)

    # ------------------------------------------------------------------------------------------------ the model's call

    def _before_forward(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._in_backward or self._fetching or self._thread != get_ident():
            return
        self._in_forward += 1
        if self._in_forward > 1:
            return
        self._what = what = is_grad_enabled() + 2 * module.training
        if not self._in_loop or self.made < _FEW_STEPS:
            what += 4 * self._look_at_call(module, [*given, *named.values()], trains=what == 3)
        self._note(_FORWARD, what)

    def _in_lap(self) -> bool:
        """Return whether the training is where a lap covers it; a call without gradients may be an evaluation."""
        return bool(self._fetching or self._in_backward or self._in_update or self._in_call) or (
            self._in_forward > 0 and self._what == 3
        )

    def _look_at_call(self, module: nn.Module, given: list[Any], *, trains: bool) -> int:
        """Return the samples that a model is called with, where no loader gives them; learn of it in a few steps."""
        if self.made < _FEW_STEPS:
            self._called.add(id(module))
            self._given = next((each for each in given if isinstance(each, torch.Tensor)), None)
        if trains and self._counting is None:
            self._counting = id(module)  # of several models, or parts of one, that which is called first
        if not trains or self._in_loop or self._counting != id(module):
            return 0
        samples = self._samples_given(module, given)
        if not self._in_update and self._fresh:
            self._samples += samples
        return samples

    def _samples_given(self, module: nn.Module, given: list[Any]) -> int:
        """Return the samples that the model is called with; a vector with the features of a layer of it is one."""
        first = next((each for each in given if isinstance(each, torch.Tensor)), None)
        if first is not None and first.ndim == 1 and first.is_floating_point():
            if len(first) not in self._vectors:
                self._vectors[len(first)] = len(first) in {getattr(each, "in_features", 0) for each in module.modules()}
            if self._vectors[len(first)]:
                return 1
        return facts.samples_of(given, second=self._second)

    def _after_forward(self, *_: Any) -> None:
        if self._in_backward or self._fetching or not self._in_forward or self._thread != get_ident():
            return
        self._in_forward -= 1
        if not self._in_forward:
            self._note(_FORWARDED)

    def _before_layer(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        """Find out, in the first steps, which dimension of what the model is given is the second of this layer."""
        shapes = [each.shape for each in (self._given, *given[:1]) if isinstance(each, torch.Tensor)]
        if len(shapes) == 2 and min(map(len, shapes)) > 1 and shapes[0][0] != shapes[1][1]:
            self._second = shapes[0][1] == shapes[1][1]

    def _hook(self, module: nn.Module) -> None:
        before, after = Door(self._before_forward, self.give_up), Door(self._after_forward, self.give_up)
        self._undo.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
        self._undo.append(module.register_forward_hook(after, always_call=True).remove)

    def _without_hooks(self, compiles: Callable[..., Any]) -> Callable[..., Any]:
        """Return what compiles a model as without hooks: it would compile them, too."""

        @functools.wraps(compiles)
        def script(*given: Any, **named: Any) -> Any:
            parts = [part for model in self._models for part in model.modules()]
            places: list[Any] = [each for part in parts for each in (part._forward_pre_hooks, part._forward_hooks)]
            doors = [(each, number, call) for each in places for number, call in each.items() if isinstance(call, Door)]
            for place, number, _ in doors:
                del place[number]
            try:
                return compiles(*given, **named)
            finally:
                for place, number, call in doors:
                    place[number] = call

        return script

    # ------------------------------------------------------------------------------------------------ waits

    def _hook_gradients(self, model: nn.Module) -> None:
        """See the last own gradient of a model that averages in backward: what follows is a wait for other ranks."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                call = functools.partial(self._gradient, id(parameter))
                handle = parameter.register_hook(Door(call, self.give_up))  # type: ignore[no-untyped-call]
                self._learning[id(parameter)] = functools.partial(_remove, handle, parameter)
        self._undo += self._learning.values()

    def _gradient(self, number: int, _: torch.Tensor) -> None:
        if not self._in_backward:
            return
        if self._learning:
            self._order.append(number)
        self._note(_GRADIENT)

    def _hook_calls(self, *, waits: bool) -> None:
        """See the calls in which the script waits for other ranks; `waits`: the host does, as without a GPU."""
        import torch.distributed as dist
        from torch.distributed import _functional_collectives, distributed_c10d

        places: list[tuple[Any, str]] = [(each, name) for name in CALLS for each in (dist, distributed_c10d)]
        places += [(dist.Work, "wait"), (_functional_collectives, "wait_tensor")]
        places += [(sys.modules.get("horovod.torch.mpi_ops"), "synchronize")]
        for place, name in places:
            if hasattr(place, name) and (name != "wait" or place is dist.Work):
                self._hook_call(place, name, waits=waits)

    def _hook_call(self, place: Any, name: str, *, waits: bool) -> None:
        number = CALLS.index(name)

        def before(*given: Any) -> None:
            if self._here():
                sizes = [each.numel() * each.element_size() for each in given[:2] if isinstance(each, torch.Tensor)]
                self._note(_SYNC if waits else _CALLED, 32 * max(sizes, default=0) + number)

        def after() -> None:
            if waits and self._here():
                self._note(_SYNCED)

        self._around(place, name, before, after, once=True)

    # ------------------------------------------------------------------------------------------------ the training

    def _open(self, stepped: list[torch.optim.Optimizer], *, changed: set[int] | None = None) -> None:
        """Begin the record of a training: what is trained is known.

        `changed`: ids of parameters that are others than before, where no update was seen.
        """
        own = ("horovod_study.recording.session", "horovod_study.recording.recorder", "horovod_study.train")
        if self._training == 1 and not self._told and any(each in sys.modules for each in own):
            self._report("seen", "own recorder")
            self.state = "over"
        if torch.utils.data.get_worker_info() is not None:  # a data set that optimizes something
            self.state = "over"
        if self.state == "over":
            return
        there = [] if self._told else facts.objects((nn.Module, torch.optim.Optimizer))  # which takes a while
        if changed is None:
            self._optimizers = {id(each): each for each in stepped}
            self._first = stepped[0]
            self._places[id(self._first)] = 0
            self._alive = weakref.WeakSet(each for each in there if issubclass(type(each), torch.optim.Optimizer))
        stepped = list(dict.fromkeys(stepped))
        groups = [each for one in stepped for each in one.param_groups]
        parameters = [each for one in stepped for each in _held_by(one)]
        self._parameters = {id(each) for each in parameters}
        self._models = self._models if self._told else self._models_of(stepped, there, changed or set())
        held = parameters or [each for model in self._models for each in model.parameters()]
        # The last one: each update changes it, as it does not the row of an embedding.
        self._probe = next((each for each in reversed(held) if each.requires_grad), held[-1] if held else None)
        self._version = None if self._probe is None else _state(self._probe, on_gpu=False)
        device = next((each.device for each in parameters if each.is_cuda), torch.device("cpu"))
        workers = facts.workers_of(self._models, self._first, on_gpu=device.type == "cuda")
        if device.type == "cuda":
            strict = self._told and self._asked["options"]["timer_mode"] == "strict"
            self._log = StrictLog() if strict else DeviceLog(self._log)
            self._note = self._log.note
        opened = {**facts.of_process(device), **workers, **self._about(stepped)}
        opened["environ"] = {name: os.environ[name] for name in self._asked.get("variables", ()) if name in os.environ}
        opened["initial_sha256"] = facts.digest(self._models)
        opened["sharded"] = any(map(facts.sharded, self._models))
        opened["lr"] = float(groups[0]["lr"]) if groups and "lr" in groups[0] else None
        opened["waits"] = device.type != "cuda" and workers["backend"] in ("ddp", "distributed", "horovod")
        known = {"training": self._training, "told": self._told, "data": self._lengths, "script": sys.argv[0]}
        self._report("opened", {**opened, **known, "width": self._log.width, "at": [wall(), now()]})
        self._log.open(self._path("events"))
        if workers["workers"] > 1 and self._timed:
            self._hook_calls(waits=device.type != "cuda")
        if (workers["workers"] > 1 or self._told) and self._timed:
            for wrapped in filter(None, map(facts.averaging, self._models)):
                self._hook_gradients(wrapped)
            averaging: Any = filter(facts.averages_in_synchronize, stepped)
            for each in averaging:
                self._hook_call(each, "synchronize", waits=True)
        for model in self._models if self._timed and self._asked.get("forward", True) else ():
            self._hook(model)
        if self._timed:
            self._around(nn.Module, "train", self._before_mode, once=True)
        for layer in filter(None, map(facts.time_first, self._models)):
            self._early.append(layer.register_forward_pre_hook(Door(self._before_layer, self.give_up)).remove)
        self._precision = facts.PrecisionObserver(nn.ModuleList(self._models), lambda call: Door(call, self.give_up))
        self._early.append(self._precision.stop)
        self._seen, self._probes, self._samples = [], [], 0
        self.state, self._fresh, self._updates = "recording", True, 0
        if multiprocessing.parent_process() is not None and not self._told:
            Finalize(None, self.finish, exitpriority=100)  # such a process ends without what atexit has
        if self._timed:
            named = functools.partial(self._report, "name")
            self._open_ends.append(Stacks(get_ident(), self._path("stacks"), named, self._in_lap).stop)
        self._turns = connect(rank=workers["rank"], workers=workers["workers"])
        self._open_ends[:0] = [] if self._turns is None else [self._turns.leave]
        self._began_s = now()
        self._note(_OPENED)
        self._settle_due()
        if self._turns is not None and not self._told:  # who is told of a loop waits as it begins
            self._wait_for_turn()

    def _models_of(self, stepped: list[torch.optim.Optimizer], there: list[Any], changed: set[int]) -> list[nn.Module]:
        """Return the models that optimizers train, or that have `changed`; `there`: all modules of this process."""
        found: list[nn.Module] = []
        modules = [each for each in there if issubclass(type(each), nn.Module)]
        for optimizer in stepped:
            own = _held_by(optimizer)
            found += facts.models_of(set(map(id, own)), modules) or [facts.LooseParameters(own)]
        if not stepped:
            found = facts.models_of(changed, modules) or facts.models_with_gradients()
        return list({id(each): each for each in found}.values())

    def _join(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Record those optimizers, too, that have stepped between two updates of the known ones."""
        for optimizer in dict.fromkeys(optimizers):
            several = len(self._optimizers) > 1
            if several and optimizer not in self._alive and _kind_of(optimizer) == _kind_of(self._first):
                continue  # made again for each task: looking for its model takes a while, and nobody is to keep it
            if len(self._optimizers) >= 16:  # so many are looked at for their models
                return
            self._optimizers[id(optimizer)] = optimizer
            for model in self._models_of([optimizer], facts.objects(nn.Module), set()):
                if all(model is not each for each in self._models):
                    self._models.append(model)
                    self._hook(model)
        self._report("joined", self._about(list(self._optimizers.values())))

    def _begin_again(self) -> None:
        """Begin another record, because the optimizers of this one step no more while others do."""
        strangers = self._strangers
        begun = self._log.take()
        self._end()
        self._restore()
        self._training += 1
        self._begin()
        self._log.give(begun)
        self.state = "watching"
        for each in strangers:
            (self._watch_update if self.state == "watching" else self._note_update)(each)

    # ------------------------------------------------------------------------------------------------ limit and turns

    def _step(self) -> None:
        self.made += 1
        if self.made >= self._due:
            self._reach()

    def _reach(self) -> None:
        """End the training where it has made the steps that were asked for, or wait for a turn."""
        for undo in self._early if self.made == _FEW_STEPS else ():
            undo()
        # A model that was not called in so many steps is a container; the models in it are.
        for model in self._models if self.made == _FEW_STEPS and not self._told else ():
            for module in () if id(model) in self._called else model.children():
                if any(parameter.requires_grad for parameter in module.parameters()):
                    self._hook(module)
        if self._turns is not None and self.made >= self._turns.until:
            self._wait_for_turn()
        if self.state == "recording" and self._turns is None and self.made >= self._limit:
            self._log.write()
            raise SystemExit
        self._settle_due()

    def _settle_due(self) -> None:
        limit = self._limit if self._turns is None else self._turns.until
        self._due = min(limit, _FEW_STEPS if self.made < _FEW_STEPS else math.inf)

    def _wait_for_turn(self) -> None:
        assert self._turns is not None
        least, began = self._asked.get("steps"), now()
        self._note(_PAUSE)
        self._log.write()
        enough, warm = least is not None and self.made >= least, self.made >= self._asked["options"]["warmup_steps"]
        said = self._turns.wait(self.made, self._samples, began - self._began_s, warm=warm, enough=enough, least=least)
        self._note(_RESUME)
        self._began_s += now() - began
        if said == "lost":
            self.give_up(RuntimeError("the runner that gave its turns has ended"))
        if said != "go" or math.isinf(self._turns.until):
            self._turns = None
        if said != "go" and not self._told:
            raise SystemExit
        self.ended = said != "go"
        self._settle_due()

    # ------------------------------------------------------------------------------------------------ what is told

    def _path(self, ending: str) -> str:
        return os.path.join(self._asked["meeting"], f"{os.uname().nodename}-{os.getpid()}-{self._training}.{ending}")

    def _report(self, what: str, value: Any) -> None:
        """Leave a line of JSON for the parent."""
        with suppress(OSError), open(self._path("facts"), "a", encoding="utf-8") as stream:
            stream.write(json.dumps([what, value]) + "\n")

    def _about(self, stepped: list[torch.optim.Optimizer]) -> dict[str, Any]:
        return {
            "model": facts.names_of(self._models, os.path.basename(sys.argv[0])),
            "optimizer": " + ".join(type(each).__name__ for each in stepped) or None,
            "parameters": facts.count(self._models),
        }

    def _end(self) -> None:
        """Close the log, and tell what only now is known."""
        if self.state != "recording":
            return
        for undo in (*self._open_ends, *self._early):
            undo()
        self._log.close()
        rss_mb, pss_mb = facts.memory_mb()
        computed = None if self._precision is None else self._precision.found()
        ended = {"sha256": facts.digest(self._models), "precision": computed, "rss_mb": rss_mb, "pss_mb": pss_mb}
        self._report("ended", {**ended, "elsewhere": self._elsewhere, "data": self._lengths})
        self.state = "over"

    def finish(self, failed: str = "") -> None:
        """End the record in good order, and take all hooks away; `failed`: why the training has failed."""
        if failed:
            self._report("failed", failed)
        try:
            self._end()
        except Exception as error:
            self.give_up(error)
        self.state = "over"
        self._restore()

    def _restore(self) -> None:
        for undo in reversed(self._undo):
            with suppress(Exception):
                undo()
        self._undo, self._models, self._optimizers = [], [], {}

    def give_up(self, error: Exception) -> None:
        """End the recording because of an error of its own; the training goes on."""
        if self.state == "over":
            return
        self.state, self.failure = "over", error
        self._report("stopped", f"at step {self.made:,}: {_named(error)}")
        print(f"horovod-study: the training goes on, its recording has stopped: {_named(error)}", file=sys.stderr)
        with suppress(Exception):
            for undo in self._open_ends:
                undo()

    def _leave(self) -> None:
        """Leave the record to the parent of this fork; where it has none, the child may train, as a rank does."""
        if self.state == "watching":
            self._begin()
            self._thread = None
        else:
            self._log.leave()
            self.state = "over"

    def _before_error(self, kind: type[BaseException], error: BaseException, _: Any) -> None:
        if self.state == "recording" and not issubclass(kind, KeyboardInterrupt):
            self._report("failed", _named(error))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _kind_of(optimizer: torch.optim.Optimizer | None) -> Any:
    return type(optimizer), [] if optimizer is None else [each.shape for each in _held_by(optimizer)]


def _state(tensor: torch.Tensor, *, on_gpu: bool = True) -> tuple[int, Any]:
    """Return what shows that a tensor was changed: its version, and, for changes through `.data`, some values.

    `on_gpu`: read them from a GPU, too, which waits for it.
    """
    # not of one that only stands for it, as compilers have
    read = type(tensor) in (torch.Tensor, nn.Parameter) and (on_gpu or not tensor.is_cuda)
    return tensor._version, tensor.detach().reshape(-1)[:8].tolist() if read else None


def _remove(handle: Any, parameter: torch.Tensor) -> None:
    """Take a hook away; where it was the last, the empty dictionary, too, that autograd goes on to visit."""
    handle.remove()
    if not parameter._backward_hooks:
        parameter._backward_hooks = None


if OrderedDict not in copyreg.dispatch_table:
    copyreg.pickle(OrderedDict, _without_doors)
