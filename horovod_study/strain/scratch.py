"""Training steps after the timed window that leave no trace: model, optimiser and random numbers are put back.

What is measured beside training (the parts of a synchronisation, steps without communication, profilers) takes place
in such steps. They are those of the trainer, on the same objects: copies of a model in other places of the memory are
not equally fast.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import nn

from horovod_study.comm.base import Backend, Optimizer
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.errors import BackendError
from horovod_study.measure.clock import LapClock
from horovod_study.strain.graphs import CapturedStep
from horovod_study.strain.loaders import Batch, Loader, feed
from horovod_study.strain.optimizer import Arithmetic


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """What makes a step of this job."""

    backend: Backend
    model: nn.Module  # what is called in training
    bare_model: nn.Module  # the network itself
    optimizer: Optimizer
    arithmetic: Arithmetic
    loader: Loader
    device: torch.device
    train_step: Callable[..., torch.Tensor]  # that of workload.trainer
    captured: CapturedStep | None = None  # what makes a step instead, where steps are CUDA graphs
    _kept: list[Callable[[], None]] = field(default_factory=list)

    @cached_property
    def _stream(self) -> Iterator[Batch]:
        return chain.from_iterable(self.loader.epoch(epoch) for epoch in count())

    @cached_property
    def _given(self) -> Iterator[Batch | None]:
        """What captured steps are given, one epoch after the other."""
        return chain.from_iterable(feed(self.loader, self.captured, epoch) for epoch in count())

    def batch(self) -> Batch:
        """Return the next local batch, curves (B, C, L) and targets (B, P); there is no last one."""
        return next(self._stream)

    @property
    def laps(self) -> Sequence[str]:
        """Return the laps of a step, in their order."""
        return ORDINARY_LAPS if self.captured is None else self.captured.laps

    def steps(self, number: int, clock: LapClock, before: Callable[[int], None] | None = None) -> None:
        """Make `number` training steps with laps on `clock`, which was started; `before(k)` is called before step k."""
        for step in range(number):
            if before is not None:
                before(step)
            clock.begin(None if self.captured is None else self.captured.begin_of_next(clock))
            if self.captured is not None:
                self.captured.take(next(self._given), clock)
                continue
            curves, targets = self.batch()
            clock.lap("data")
            self.train_step(self.model, self.optimizer, curves, targets, self.backend, clock, self.arithmetic)

    def timed(self, number: int, clock: LapClock, before: Callable[[int], None] | None = None) -> dict[str, np.ndarray]:
        """Make `number` steps as a stretch of `clock`, wait for the last, and return their laps (`LapClock.drain`)."""
        clock.start()
        self.steps(number, clock, before)
        self.settle()
        return clock.drain()

    def settle(self) -> None:
        """Return when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def kept(self) -> Iterator[str]:
        """Put model, optimiser, loss scaling and random numbers back at the end, and prove it by their SHA-256.

        Yields the hash of what they were. Collective. Raises BackendError, on every rank, if they are not what they
        were before, or not the same on all ranks; nothing is put back after an error.
        """
        before = self.fingerprint()
        self._require_all(
            before,
            "has other parameters or another optimiser than rank 0 at the end of training; do not use this run, and "
            "report its settings",
        )
        self._kept.append(self._remember())
        yield before
        self.put_back()
        self._kept.pop()
        self._require_all(
            self.fingerprint(),
            "could not put its parameters and optimiser back after measuring; do not use its checkpoint, and report "
            "the settings of this run",
            wanted=before,
        )

    def _require_all(self, own: str, otherwise: str, *, wanted: str = "") -> None:
        everybody = self.backend.gather(own)
        for rank, found in enumerate(everybody):
            if found != (wanted or everybody[0]):
                raise BackendError(f"rank {rank} {otherwise}")

    def put_back(self) -> None:
        """Put everything back to what it was at the begin of `kept`, inside of which it is called, as `kept` will."""
        self._kept[-1]()

    def _places(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what training goes on from, where it is: values by name, in the same order on all ranks."""
        yield "model", self.bare_model.state_dict()
        for place, group in enumerate(self.optimizer.param_groups):
            yield f"{place}", group
            for number, parameter in enumerate(group["params"]):
                yield f"{place} {number}", self.optimizer.state.get(parameter, {})

    def _remember(self) -> Callable[[], None]:
        """Return what puts everything back to what it is now, in the same places of the memory."""
        kept = {
            place: {name: each.clone() if torch.is_tensor(each) else each for name, each in values.items()}
            for place, values in self._places()
        }
        scaler = self.arithmetic.scaler.state_dict() if self.arithmetic.scaler else {}
        random = torch.random.get_rng_state()
        device_random = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

        @torch.no_grad()
        def put_back() -> None:
            for place, values in self._places():
                for name in list(values):
                    if name not in kept[place]:
                        del values[name]
                    elif torch.is_tensor(values[name]):  # in place: a captured graph knows the tensor, not its name
                        values[name].copy_(kept[place][name])
                    elif name != "params":
                        values[name] = kept[place][name]
            for parameter in [each for each, slots in self.optimizer.state.items() if not slots]:
                del self.optimizer.state[parameter]
            if self.arithmetic.scaler:
                self.arithmetic.scaler.load_state_dict(scaler)
            torch.random.set_rng_state(random)
            if device_random is not None:
                torch.cuda.set_rng_state(device_random, self.device)

        return put_back

    def fingerprint(self) -> str:
        """Return the SHA-256 of the parameters, the optimiser's state and its settings, and the loss scaling."""
        scaling = {} if self.arithmetic.scaler is None else self.arithmetic.scaler.state_dict()
        digest = hashlib.sha256()
        for place, values in (*self._places(), ("loss scaling", scaling)):
            for name, value in sorted(values.items()):
                if torch.is_tensor(value):
                    value = value.detach().cpu().contiguous().numpy().tobytes()
                if name != "params":
                    digest.update(f"{place} {name}".encode())
                    digest.update(value if isinstance(value, bytes) else repr(value).encode())
        return digest.hexdigest()
