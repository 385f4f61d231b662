"""Sees a training whose script says where its loops are, and notes what happens in it, as `watch` does for any script.

Hooks are on what the script gives alone, and gone at the end. What a loop says of itself is an event as all others.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import weakref
from array import array
from contextlib import suppress
from threading import get_ident
from typing import Any

import torch
from torch import nn

from horovod_study.recording.rank import facts
from horovod_study.recording.rank.events import DATA_SETS, LAPS, NUMBER, now
from horovod_study.recording.rank.watch import Door, Watcher

_TOGETHER = 512
"""So many losses of a GPU become one tensor, which needs less of its memory."""


class Told(Watcher):
    """Notes the events of one model, one optimizer and the loops that are told of."""

    _told = True

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked)
        self._losses = array("d")  # pairs of a moment and the loss
        self._moments = array("d")  # of the losses of a GPU, ...
        self._newest: list[torch.Tensor] = []
        self._read_later: list[torch.Tensor] = []  # ... which are here, the older ones together

    def watch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """See the training of these until `finish`, after which they and PyTorch are as they were."""
        for name in ("backward", "grad") if self._timed else ():
            original = getattr(torch.autograd, name)
            setattr(torch.autograd, name, self._watched_backward(original))
            self._undo.append(functools.partial(setattr, torch.autograd, name, original))
        self._undo.append(optimizer.register_step_pre_hook(Door(self._before_update, self.give_up)).remove)
        self._undo.append(optimizer.register_step_post_hook(Door(self._after_update, self.give_up)).remove)
        if hasattr(os, "register_at_fork"):
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: None if (own := me()) is None else own._leave())
        self._models, self._in_loop, self._most = [model], True, math.inf
        self._open([optimizer])

    def begin_loop(self, data: Any) -> None:
        """A loop over a loader begins, whose data set is `data`."""
        self._loops, self._fresh, self._thread = self._loops + 1, True, get_ident()
        number = self._number_of(data)
        self._loop = self._loops * DATA_SETS + number
        self._note(NUMBER["start"], number)

    def fetch(self) -> None:
        """The loop asks for a batch: its turn before is over."""
        self._turn()
        if self._turns is not None and self.made >= self._turns.until:
            self._wait_for_turn()
        self._log.write()
        self._note(NUMBER["fetch"], self._loop)

    def samples_of(self, batch: Any, size: Any) -> int:
        """Return how many samples a batch has, of a loader that calls it `size`; 0: unknown."""
        return facts.samples_of(batch, size=size if isinstance(size, int) else None, second=self._second)

    def report(self, kind: str, number: int = 0) -> None:
        """Note that something of these kinds happens now: batch, ended, lap, skip, skipped, left."""
        self._note(NUMBER[kind], number)
        if kind == "batch":
            self._samples += number
        elif kind == "left":
            self._turn()
            self._fresh = True
        elif kind == "lap":
            self._updates += LAPS[number] == "update"
        elif kind in ("skip", "skipped"):
            self._thread = 0 if kind == "skip" else get_ident()  # hooks see nothing of what is in no step

    def loss(self, loss: torch.Tensor) -> None:
        """Keep a loss, shape (); of a GPU it is read at the end, and not waited for."""
        if loss.device.type == "cpu":
            self._losses.extend((now(), float(loss)))
            return
        self._moments.append(now())
        self._newest.append(loss.clone())  # a captured step writes the next one to the same place
        if len(self._newest) == _TOGETHER:
            self._read_later.append(torch.stack(self._newest))
            self._newest = []

    def finish(self, failed: str = "") -> None:
        """End the record in good order, and take all hooks away; `failed`: why the training has failed."""
        if self.state == "recording":
            with suppress(Exception), open(self._path("losses"), "wb") as stream:
                values = [each.reshape(-1).tolist() for each in (*self._read_later, *self._newest)]
                self._losses.extend(itertools.chain(*zip(self._moments, itertools.chain(*values))))  # noqa: B905
                self._losses.tofile(stream)
        super().finish(failed)
