"""Whole training steps as CUDA graphs: recorded once, then replayed, a call or three for a step.

    one worker             [gather forward backward update]                                     lap compute
    several workers        [gather forward backward pack]  exchange  [update]                   compute, sync, update
    in phases              [gather forward]  [backward pack]  exchange  [update]       forward, backward, sync, update
    with `capture_sync`    [gather forward backward pack exchange update]                       compute

What is in brackets is one graph. A graph repeats the same kernels on the same addresses, and nothing of Python runs
while it is replayed. So all that changes from step to step is on the device: the rows of the epoch's batches and a
counter that says which of them is next, the learning rate, and a ring into which the losses go.

Letters: S curves resident on the device, B of them in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from horovod_study.comm import Backend
from horovod_study.errors import BackendError, StudyError
from horovod_study.measure.clock import KernelStamps, LapClock, now
from horovod_study.strain.kernels import BlockSizes, FusedNetwork, rule_of
from horovod_study.strain.loaders import Batch
from horovod_study.strain.loaders import Resident as Resident
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic
from horovod_study.strain.optimizer import replayed_on_host as replayed_on_host
from horovod_study.strain.options import StrainConfig

RING = 4096
"""So many steps later the place of a step's loss is written again."""
WARM_UP_STEPS = 3
"""Steps made before the recording: libraries choose their kernels, compilers compile, lazy state is made."""


class DeviceGraph:
    """A CUDA graph, captured on `stream`, its memory in `pool`.

    Graphs of one step share a pool, so that one may use again what those before it have done with: they must be
    replayed in the order in which they were captured.
    """

    def __init__(self, stream: torch.cuda.Stream, pool: Any) -> None:
        self._stream, self._pool = stream, pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        spoilt: RuntimeError | None = None
        try:
            # Threads of loaders and of Horovod may call CUDA meanwhile: only this thread must not call what cannot be
            # captured. The outer context puts the stream back also where the end of the capture fails.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                try:
                    work()
                except RuntimeError as error:
                    spoilt = error
        except RuntimeError as error:
            spoilt = spoilt or error  # a capture that was spoilt cannot be ended either
        if spoilt is not None:
            raise spoilt

    def replay(self) -> None:
        self._graph.replay()


class HostGraph:
    """The same on a CPU, for tests and dry runs: a replay calls the work again."""

    def capture(self, work: Callable[[], None]) -> None:
        self.replay = work


class CapturedStep:
    """A training step that was recorded; `take` makes one.

    It starts with the parameters, the optimiser's state, the loss scaling and the random state as they are, and making
    it leaves them as they are. The optimiser's state must be loaded before, or `forget` called after: graphs know
    tensors by their addresses.
    """

    def __init__(
        self,
        config: StrainConfig,
        *,
        model: nn.Module,
        bare_model: StressCNN,
        optimizer: torch.optim.Optimizer,
        backend: Backend,
        arithmetic: Arithmetic,
        device: torch.device,
        resident: Resident | None,
        phases: bool,
        blocks: BlockSizes | None = None,
        record: Callable[[], Any] | None = None,
    ) -> None:
        """Record the step of `model`, whose parameters are those of `bare_model`.

        `resident`: batches are gathered on the device, in the order given to `begin_epoch`; None: `take` is given them.
        `phases`: forward and backward are graphs of their own. `blocks` are those of fused kernels; left out, they fit
        the sizes. `record` makes the recordings; left out, CUDA graphs on a GPU, and calls on a CPU. Collective where
        the exchange is captured.
        Raises StudyError where the step cannot be captured, ConfigError and BackendError for what does not go together.
        """
        if config.capture_sync and not backend.capturable:
            raise BackendError(
                f"capture_sync needs backend ddp over NCCL, whose all-reduce a CUDA graph can hold, but this run "
                f"averages with {backend.name} over {backend.transport}; leave capture_sync out"
            )
        self._config, self._model, self._bare_model, self._optimizer = config, model, bare_model, optimizer
        self._backend, self._arithmetic, self._device, self._phases = backend, arithmetic, device, phases
        self._averages = backend.flat is not None
        self._inside = config.capture_sync and self._averages and not phases
        self._record = record or HostGraph
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and record is None:
            # Warm-up and recordings share it: what autograd remembers of a stream must be true when it is recorded.
            self._stream = stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._record = lambda: DeviceGraph(stream, self._pool)

        batch = config.batch
        self._resident = resident
        if resident is None:
            self._curves = torch.zeros(batch, CHANNELS, POINTS, device=device)
            self._targets = torch.zeros(batch, TARGETS, device=device)
            self._order = torch.arange(batch, device=device)[None]
        else:  # as many batches as the curves can give: the longest epoch of one worker
            self._curves, self._targets = resident.curves, resident.targets
            self._order = torch.zeros(max(1, len(self._curves) // batch), batch, dtype=torch.int64, device=device)
        self._state = torch.zeros(2, dtype=torch.int64, device=device)  # the row of `order`, and the steps made
        self._row, self._made = self._state[:1], self._state[1:]
        self._advance = torch.tensor([int(resident is not None), 1], device=device)
        self._ring = torch.zeros(RING, device=device)
        self._norms = torch.zeros(RING, device=device)
        self._losses, self._norms2 = self._ring.unbind(), self._norms.unbind()
        self._loss = self._ring[0]  # of the forward in hand, with all that backward needs
        self._taken = 0  # steps made: what the device counts too
        self._left = 0  # steps for which `order` still has rows
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []  # what the network's kernels write, and where
        # whether the kernels of backward make the update too
        self._merged = rule_of(optimizer) is not None and not (self._averages or phases)
        self.stamps: KernelStamps | None = None
        """Where the kernels write the times of the steps themselves; None where they do not."""
        self._network = self._fuse(blocks) if config.kernels == "fused" else None
        self._plan: tuple[tuple[Callable[[], None], str], ...] = ()
        self._pool: Any = None
        self._capture()

    def _fuse(self, blocks: BlockSizes | None) -> FusedNetwork:
        """Take the kernels made for this network, which write all gradients into one buffer."""
        model, flat = self._bare_model, self._backend.flat
        count = sum(each.numel() for each in model.parameters())
        buffer = torch.zeros(count, device=self._device) if flat is None else flat.buffer
        network = FusedNetwork(
            model,
            batch=self._config.batch,
            precision=self._config.precision,
            buffer=buffer,
            share=1 / self._backend.workers,
            blocks=blocks,
            optimizer=self._optimizer if rule_of(self._optimizer) else None,
            merged=self._merged,
            slots=RING if self._merged and self._stream is not None else 0,
        )
        self.stamps, self._gradients = network.stamps, list(zip(model.parameters(), model.views(buffer), strict=True))
        return network

    def _forward(self) -> None:
        if self._network is not None:
            self._loss = self._network.forward(self._curves, self._targets, self._order, self._state)
            return
        # Without gradients from before, autograd's own become the parameters': nothing is cleared or added.
        self._backend.zero_grad(self._optimizer)
        curves, targets = self._curves, self._targets
        if self._resident is not None:
            rows = self._order.index_select(0, self._row).flatten()  # (B,)
            curves, targets = curves.index_select(0, rows), targets.index_select(0, rows)
        self._loss = self._arithmetic.loss(self._model, curves, targets)

    def _backward(self) -> None:
        if self._network is not None:
            for parameter, gradient in self._gradients:  # others may have cleared them
                parameter.grad = gradient
            self._network.backward(self._ring, self._state, 0 if self._resident is None else 1)
            return
        self._arithmetic.backward(self._loss)
        self._ring.index_copy_(0, self._made % RING, self._loss.detach()[None])
        self._state.add_(self._advance)

    def _pack(self) -> None:
        """Make the flat buffer ready to be averaged; this step is counted already."""
        flat = self._backend.flat
        assert flat is not None
        if self._network is None:
            self._backend.pack_gradients()
        else:
            flat.measure()
        assert flat.norm2 is not None
        self._norms.index_copy_(0, self._made % RING, flat.norm2[None])

    def _update(self) -> None:
        if self._network is None or not self._network.updates:
            self._arithmetic.step(self._optimizer, self._backend)
        elif not self._merged:
            self._network.update()

    def _parts(self) -> Iterator[tuple[str, tuple[Callable[[], None], ...]]]:
        """Yield the laps of a step, each with what one graph holds, or with nothing: the exchange between graphs."""
        pack = (self._pack,) if self._averages else ()
        if self._phases:
            yield "forward", (self._forward,)
            yield "backward", (self._backward, *pack)
            yield "sync", ()
            yield "update", (self._update,)
        elif self._averages and not self._inside:
            yield "compute", (self._forward, self._backward, *pack)
            yield "sync", ()
            yield "update", (self._update,)
        else:
            exchange = (self._backend.exchange,) if self._inside else ()
            yield "compute", (self._forward, self._backward, *pack, *exchange, self._update)

    def _capture(self) -> None:
        """Warm up and record all graphs of a step; raises StudyError if that fails, and then too leaves no trace."""
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()
        plan = []
        if self._network is not None:
            self._network.adopt()
        try:
            with self._no_trace(), self._aside():
                for _ in range(WARM_UP_STEPS):
                    self._row.zero_()  # the batch after the last one is none
                    for _, parts in self._parts():
                        _make(parts)
            for lap, parts in self._parts():
                if not parts:
                    plan.append((self._backend.exchange, lap))
                    continue
                recording = self._record()
                recording.capture(partial(_make, parts))
                plan.append((recording.replay, lap))
        except RuntimeError as error:
            self.forget()
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise StudyError(
                f"run: this step cannot be captured as a CUDA graph ({reason}); leave cuda_graphs out"
                + (", or compile" if self._config.compile else "")
                + (", or use kernels torch" if self._network is not None else "")
            ) from error
        self._plan = tuple(plan)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Work on the stream of the recordings, after what the current one was given, which waits for it at the end."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextmanager
    def _no_trace(self) -> Iterator[None]:
        """Put back what steps change, in the places that graphs know, but for gradients; new state becomes zero."""
        scaler = self._arithmetic.scaler
        scaling = scaler.state_dict() if scaler else {}
        own = (self._state, self._ring, self._norms, *([] if self.stamps is None else [self.stamps.times]))
        known = [*self._bare_model.parameters(), *self._optimizer_state(), *own]
        kept = [tensor.detach().clone() for tensor in known]
        try:
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                yield
        finally:
            with torch.no_grad():
                for tensor, before in zip(known, kept, strict=True):
                    tensor.copy_(before)
                old = {id(tensor) for tensor in known}
                for tensor in self._optimizer_state():
                    if id(tensor) not in old:
                        tensor.zero_()
            if scaler:
                scaler.load_state_dict(scaling)

    def _optimizer_state(self) -> list[torch.Tensor]:
        return [each for slots in self._optimizer.state.values() for each in slots.values() if torch.is_tensor(each)]

    @property
    def laps(self) -> tuple[str, ...]:
        """Return the laps of a step, in their order."""
        return (*(() if self._resident else ("data",)), *(lap for lap, _ in self._parts()))

    @property
    def norm2(self) -> torch.Tensor | None:
        """Backend.local_norm2 of the step made last, shape (), kept as long as its loss; None where not averaged."""
        # The device counts a step before it packs, so that this ring is one place ahead of that of the losses.
        return self._norms2[self._taken % RING] if self._averages and self._taken else None

    def begin_epoch(self, order: torch.Tensor) -> None:
        """Let the next steps gather the batches `order`, (steps, B) int64 rows of the resident curves, in this order.

        Up to the longest epoch of one worker, S / B steps, the rows are copied into the place that the graphs read;
        for more, the step is recorded again.
        """
        if len(order) > len(self._order):
            self._order = torch.zeros_like(order, device=self._device)
            self.forget()
        self._order[: len(order)].copy_(order)
        self._row.zero_()
        self._left = len(order)

    def begin_of_next(self, clock: LapClock) -> tuple[float, int] | None:
        """Return the stamp with which `clock` begins the next step, None where it takes its own."""
        return None if self.stamps is None or clock.device is not self.stamps else self._at(self.stamps.begin_of)

    def _at(self, place: Callable[[int], int]) -> tuple[float, int]:
        return now(), place(self._taken)

    def take(self, batch: Batch | None, clock: LapClock) -> torch.Tensor:
        """Make one step and return its loss, shape (), which stays in place until the step RING later.

        `batch`: curves (B, C, L) and targets (B, P), None where they are resident. Laps as in the table above; with a
        batch, `data` comes first: from the stamp before this call to the end of the copy into the graph's own batch.
        """
        if not self._plan:
            self._capture()
        if batch is not None:
            self._curves.copy_(batch[0], non_blocking=True)
            self._targets.copy_(batch[1], non_blocking=True)
            clock.lap("data")
        elif self._left:
            self._left -= 1
        else:
            raise RuntimeError("no batch is left: begin_epoch() says which come next")
        stamps = self.stamps
        for work, lap in self._plan:
            work()
            clock.lap(lap, None if stamps is None or clock.device is not stamps else self._at(stamps.end_of))
        loss = self._losses[self._taken % RING]
        self._taken += 1
        return loss

    def forget(self) -> None:
        """Free the graphs and their memory; the next step records them again."""
        self._plan = ()
        self._loss = self._ring[0]
        self._optimizer.zero_grad()  # gradients are in the graphs' memory, or are views of the buffer
        self._pool = None

    close = forget


def _make(parts: tuple[Callable[[], None], ...]) -> None:
    for part in parts:
        part()
