"""Marks the laps of somebody's step from public hooks of the model, its parameters and the optimizer.

residual    until the model's forward begins; between the end of backward and the optimizer's step
forward     until the model's forward has returned
backward    until autograd is done; for a model that averages in backward, until this rank's last gradient is made
sync        the wait inside backward after that moment; or inside the `synchronize` of Horovod's optimizer
update      the optimizer's step, but for what of the above happens inside it

Autograd reports its end through its engine's `queue_callback`, which is not public but what PyTorch's own data
parallelism uses. Where a version should have none, the end of a wait inside backward is the next lap.

Whoever sees the calls of backward and of all optimizers (automatic.py) tells their begins and ends: then a gradient is
watched only where its backward waits for other ranks, and no optimizer has hooks of its own.
"""

import copyreg
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import is_grad_enabled, nn

from horovod_study.comm.attached import averages_in_backward, averages_in_synchronize, averaging, bare
from horovod_study.measure.clock import LapClock

KEPT = 2
"""So many of the last gradients of each backward stay watched: the order of the last may change."""


class Steps(Protocol):
    """What is watched: somebody's steps, while they are recorded."""

    @property
    def workers(self) -> int:
        """The number of workers."""

    in_step: bool
    """Whether a step is under way."""
    updated: bool
    """Whether the parameters were updated in it."""

    def give_up(self, error: Exception) -> None:
        """End the recording because of an error of its own, and let the training go on."""


class Hook:
    """What a model is given to call: what goes wrong in `call` is given to `failed`, and never reaches the training.

    Copies and pickles of the model are without it: it belongs to a run under way, with its files and locks, and who
    loads the pickle may have nothing of this package, or allow it to hold nothing but weights. The hooks of a module
    are in an `OrderedDict`, from which `_without_hooks` leaves them out; elsewhere something that does nothing, of the
    standard library, stands in its place.
    """

    def __init__(self, call: Callable[..., None], failed: Callable[[Exception], None]) -> None:
        self._call, self._failed = call, failed

    def __call__(self, *arguments: Any) -> None:
        try:
            self._call(*arguments)
        except Exception as error:
            self._failed(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything, returns None


def _without_hooks(values: "OrderedDict[Any, Any]") -> Any:
    """Return what makes a copy of an ordered dictionary, as it would be copied and pickled but for hooks of ours."""
    made = values.__reduce__()
    if not any(isinstance(each, Hook) for each in values.values()):
        return made
    return *made[:4], iter([(name, each) for name, each in values.items() if not isinstance(each, Hook)])


class _BeforeForward(Hook):
    """Ends what came before a forward: one call, because it is made in every step."""

    def __init__(self, hooks: "Hooks", failed: Callable[[Exception], None]) -> None:
        self._hooks, self._failed = hooks, failed

    def __call__(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        hooks = self._hooks
        try:
            counts = hooks.steps.in_step and not hooks.under_way and is_grad_enabled()
            if hooks.outside is not None and (hooks.all_outside or not counts) and module is hooks.model:
                hooks.outside(module, given, named)
                counts = hooks.steps.in_step and not hooks.under_way and is_grad_enabled()
            hooks.under_way.append(counts)
            if counts:
                if hooks.gradients:
                    hooks.settle()
                hooks.clock.lap("update" if hooks.updates else "residual")
        except Exception as error:
            self._failed(error)


class _AfterForward(_BeforeForward):
    """Ends a forward."""

    def __call__(self, *_: Any) -> None:
        hooks = self._hooks
        try:
            if hooks.under_way and hooks.under_way.pop() and hooks.steps.in_step:
                hooks.clock.lap("forward")
                hooks.forwards += 1
        except Exception as error:
            self._failed(error)


def _watch_gradient(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Call `call` when the gradient of a leaf is made; return what takes the hook away.

    A hook that is only removed leaves an empty dictionary, which autograd goes on to visit for each gradient.
    """
    handle = parameter.register_hook(call)  # type: ignore[no-untyped-call]

    def undo() -> None:
        handle.remove()
        if not parameter._backward_hooks:
            parameter._backward_hooks = None

    return undo


class Hooks:
    """The hooks on one model and its optimizer, until `remove`; None where parameters are updated without one."""

    def __init__(
        self,
        steps: Steps,
        clock: LapClock,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        forward: bool,
        told: bool = False,
    ) -> None:
        """`told`: the caller tells of backwards (`take_gradients`) and updates (`before_update`, `after_update`)."""
        self.steps, self.clock, self.model, self._told = steps, clock, model, told
        self.forwards = 0  # that were seen to end
        self.gradients = 0  # watched ones that this backward has made so far
        self.outside: Callable[..., None] | None = None  # called for a forward that is in no step or has no gradients
        self.all_outside = False  # called for every forward
        engine = getattr(torch.autograd.Variable, "_execution_engine", None)
        self._when_done: Callable[[Callable[[], None]], None] | None = getattr(engine, "queue_callback", None)
        self.under_way: list[bool] = []  # forwards, and whether each is the outermost of a step
        self._expected = 0  # watched gradients of the backward before
        self._order: list[int] = []  # ids of the parameters of this backward, while their order is learnt
        self._last_ones: set[int] = set()  # of the backwards so far
        self._learning: dict[
            int, Callable[[], None]
        ] = {}  # id of each parameter watched for this -> takes its hook away
        self._steps_learnt = 0
        self.reset()
        if steps.workers == 1 and not averages_in_synchronize(optimizer) and bare(model) is model:
            clock.know("sync")  # one worker that wraps nothing waits for nobody: no gap in the rows
        self._undo: list[Callable[[], None]] = []
        self._wrapper = averaging(model)
        if not clock.takes_stamps:
            if optimizer is not None and not told:
                self._undo.append(optimizer.register_step_post_hook(self._safe(self._note_update)).remove)
            return
        if forward:
            self.watch_forward(model)
        for parameter in model.parameters() if self._wrapper is not None or not told else ():
            if parameter.requires_grad:
                undo = _watch_gradient(parameter, self._safe(partial(self._gradient, id(parameter))))
                self._learning[id(parameter)] = undo
                self._undo.append(undo)
        if optimizer is None:
            return
        if not told:
            self._undo.append(optimizer.register_step_pre_hook(self._safe(self.before_update)).remove)
            self._undo.append(optimizer.register_step_post_hook(self._safe(self.after_update)).remove)
        if averages_in_synchronize(optimizer):
            self._wrap_synchronize(optimizer)

    def _safe(self, call: Callable[..., None]) -> Hook:
        return Hook(call, self.steps.give_up)

    def watch_forward(self, module: nn.Module) -> None:
        """Mark the forward of `module`."""
        self._undo.append(
            module.register_forward_pre_hook(
                _BeforeForward(self, self.steps.give_up), prepend=True, with_kwargs=True
            ).remove
        )
        self._undo.append(
            module.register_forward_hook(_AfterForward(self, self.steps.give_up), always_call=True).remove
        )

    def reset(self) -> None:
        """Forget what a step before has left half done, such as a backward that was out of memory."""
        self.gradients, self._last, self._queued, self.updates = 0, None, False, 0
        if self.under_way:
            del self.under_way[:]
        if self._learning and self._last_ones:
            del self._order[:]
            self._steps_learnt += 1
            # three steps show which gradients come last
            if self._steps_learnt == 3:
                for number, undo in self._learning.items():
                    if number not in self._last_ones:
                        undo()
                self._learning, self._expected = {}, 0

    def remove(self) -> None:
        """Take all hooks away; the model and the optimizer are as they were."""
        for undo in self._undo:
            undo()

    def settle(self) -> None:
        """Give a backward its laps whose end autograd did not report."""
        if self.gradients:
            self._end_backward(seen=False)

    def _gradient(self, number: int, _: torch.Tensor) -> None:
        if not self.steps.in_step:
            return
        if self._learning:
            self._order.append(number)
        self.gradients = made = self.gradients + 1
        if not self._queued and not self._told and self._when_done is not None:
            self._queued = True
            self._when_done(self._safe(self._gradients_made))
        # A stamp costs on a GPU: it is left out where as many gradients as in the backward before are still to come.
        if made >= self._expected:
            self._last = self.clock.mark()

    def _gradients_made(self) -> None:
        """Autograd has made all gradients; of those that it calls at its end, this one came first."""
        self._queued = False
        if self.gradients and self.steps.in_step:
            self._end_backward(seen=True)

    def take_gradients(self) -> Any:
        """End a backward; return the stamp of its last gradient, None where its end is that of the backward."""
        last = self._last if self.gradients >= self._expected else None
        self._expected, self.gradients, self._last = self.gradients, 0, None
        if self._learning:
            self._last_ones.update(self._order[-KEPT:])
            del self._order[:]
        return last if averages_in_backward(self._wrapper or self.model) else None

    def _end_backward(self, *, seen: bool) -> None:
        made = self._last if self.gradients >= self._expected else None
        averaged = self.take_gradients()
        if averaged is None:
            self.clock.lap("backward", at=None if seen else made)
            return
        self.clock.lap("backward", at=averaged)
        if seen and self._when_done is not None:
            self._when_done(self._safe(self._averaged))  # behind what the model itself does at the end
        else:
            self._averaged()

    def _averaged(self) -> None:
        self.clock.lap("sync")

    def _note_update(self, *_: Any) -> None:
        self.steps.updated = True

    def before_update(self, *_: Any) -> None:
        """Note that a step of the optimizer begins."""
        if self.steps.in_step:
            if self.gradients:
                self.settle()
            self.clock.lap("update" if self.updates else "residual")
        self.updates += 1

    def after_update(self, *_: Any) -> None:
        """Note that a step of the optimizer has ended."""
        if self.updates:
            self.updates -= 1
        if self.steps.in_step:
            self.clock.lap("update")
            self.steps.updated = True

    def _before_synchronize(self) -> None:
        if self.steps.in_step:
            self.settle()
            self.clock.lap("residual")

    def _after_synchronize(self) -> None:
        if self.steps.in_step:
            self.clock.lap("sync")

    def _wrap_synchronize(self, optimizer: Any) -> None:
        """Put a lap around `synchronize` of this one optimizer, which its step calls, or the script."""
        original = optimizer.synchronize
        before, after = self._safe(self._before_synchronize), self._safe(self._after_synchronize)

        def synchronize(*arguments: Any, **named: Any) -> Any:
            before()
            try:
                return original(*arguments, **named)
            finally:
                after()

        def restore() -> None:
            # The method of its class shows again, or the one that the object had itself is put back.
            del optimizer.synchronize
            if getattr(optimizer, "synchronize", None) != original:
                optimizer.synchronize = original

        optimizer.synchronize = synchronize
        self._undo.append(restore)


if OrderedDict not in copyreg.dispatch_table:
    copyreg.pickle(OrderedDict, _without_hooks)
