"""Gradients that leave from hooks during backward, joined to buckets.

Backward makes the gradients of the last layers first. Buckets are therefore filled in reverse order of the parameters,
and each one is sent when its last gradient is there, while backward goes on with the layers before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from horovod_study.errors import BackendError


@dataclass(frozen=True, slots=True)
class Bucket:
    """A contiguous part of the gradient buffer: its number, and first and last + 1 element."""

    number: int
    start: int
    stop: int


class GradientBuckets:
    """One buffer for all gradients, in reverse order of the parameters, cut into buckets of about `bucket_bytes`.

    A bucket ends with the parameter that fills it, so one larger parameter is one larger bucket. `send` is called from
    within backward with each bucket when it is full, always in the order of their numbers: the order in which gradients
    arrive may differ from rank to rank, that of collectives must not.
    """

    silent = False
    """Gradients stay where backward made them, and nothing is sent; see Backend.no_sync."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, workers: int, bucket_bytes: float, send: Callable[[Bucket], None]
    ) -> None:
        trained = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
        first = trained[0]
        self.buffer = torch.zeros(
            sum(parameter.numel() for parameter in trained), dtype=first.dtype, device=first.device
        )  # (number of parameters,)
        self._share = 1 / workers
        self._send = send
        self.buckets: list[Bucket] = []
        self._members: list[int] = []  # bucket -> how many gradients it has
        start = stop = members = 0
        for number, parameter in enumerate(trained):
            view = self.buffer[stop : stop + parameter.numel()].view(parameter.shape)
            stop += parameter.numel()
            members += 1
            bucket = len(self.buckets)
            parameter.register_post_accumulate_grad_hook(self._hook(bucket, view))  # type: ignore[no-untyped-call]
            if (stop - start) * self.buffer.element_size() >= bucket_bytes or number + 1 == len(trained):
                self.buckets.append(Bucket(bucket, start, stop))
                self._members.append(members)
                start, members = stop, 0
        self._missing = list(self._members)
        self._next = 0  # the first bucket that has not been sent in this step

    def _hook(self, bucket: int, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """Return what to call when the gradient that `view` has room for is there."""

        def arrived(parameter: torch.Tensor) -> None:
            if parameter.grad is None or self.silent:
                return
            # Divided here, on the way into the bucket: the sum over the workers is then the mean.
            torch.mul(parameter.grad, self._share, out=view)
            parameter.grad = view
            self._missing[bucket] -= 1
            while self._next < len(self.buckets) and self._missing[self._next] <= 0:
                self._send(self.buckets[self._next])
                self._next += 1

        return arrived

    def require_all_sent(self) -> None:
        """Be ready for the next step; raises BackendError if this step left a parameter without a gradient."""
        if self._next != len(self.buckets):
            raise BackendError(
                "a parameter got no gradient in this step, and the others would wait for it; use --reduction flat, or "
                "a model that uses all its parameters"
            )
        self._missing = list(self._members)
        self._next = 0
