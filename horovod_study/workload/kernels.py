"""Loss and gradients of the network in nine launches, six of kernels of its own and three of cuBLAS, for CUDA graphs.

PyTorch launches a kernel for each operation, and at batch 75 most of what one takes is its launch. Here convolution,
pooling and ReLU are one kernel, the batch is read out of the data set by the kernel that uses it, and the gradient
between the convolutions is never stored. The launches of a step (B curves; f1 and f2 filters, h hidden units, of which
the network has 15, 38 and 197):

    forward    convolution       gather, scaling, conv1, pool, ReLU -> (B, f1, 65)
               convolution       conv2, pool, ReLU                  -> (B, f2, 20)
               addmm             fc1                                -> (B, h)
               head              ReLU, fc2, loss and its way back   -> (B, h), partial sums
    backward   mm                gradient of fc1.weight             -> (h, 20 f2), in its place
               mm                gradient of fc1's input            -> (B, 20 f2)
               weight_gradient   conv2's weight and bias            -> partial sums
               first_gradient    conv2's input, conv1's weight and bias -> partial sums
               finish            sums of all partial sums, in a fixed order; loss; the step is counted

With bf16 three copies more: fc1's weight and bias to bfloat16, the gradient of the weight back.

The kernels are in `triton_kernels.py`. Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets, S
curves of the data set.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from horovod_study.errors import ConfigError
from horovod_study.workload.material import CHANNELS, POINTS, TARGETS
from horovod_study.workload.model import StressCNN

PRECISIONS = ("fp32", "tf32", "bf16")
KERNEL, POOL = 5, 3
PROGRAMS = 132
"""Programs that a launch should have at least: one for each multiprocessor of an H100 or H200. A constant, so that sums
are formed in the same order everywhere."""


def why_not() -> str:
    """Return why these kernels cannot be used here, or ''."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return (
            f"Triton cannot be imported ({error}); it comes with PyTorch for CUDA, elsewhere with the extra `kernels`"
        )
    if not (torch.cuda.is_available() or interpreted()):
        return "PyTorch sees no GPU"
    return ""


def interpreted() -> bool:
    """Return whether Triton's interpreter takes the place of its compiler (TRITON_INTERPRET=1): on a CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that kernels are compiled for: those of the network, and the batch."""

    batch: int
    filters: tuple[int, int]
    pooled: tuple[int, int]
    """Positions after pooling, of the first and of the second convolution."""
    hidden: int

    @classmethod
    def of(cls, model: StressCNN, batch: int) -> "Sizes":
        """Read them off the model. Raises ConfigError where 32 bits cannot count what there is of a batch."""
        first = (POINTS - KERNEL + 1) // POOL
        filters = (model.conv1.out_channels, model.conv2.out_channels)
        pooled = (first, (first - KERNEL + 1) // POOL)
        hidden = model.fc1.out_features
        if batch * POOL * max(filters[0] * pooled[0], filters[1] * pooled[1], hidden) >= 2**31:
            raise ConfigError(
                f"run: kernels fused count inside a batch with 32 bits, and batch {batch} of this network goes beyond; "
                "use a smaller batch, or kernels torch"
            )
        return cls(batch=batch, filters=filters, pooled=pooled, hidden=hidden)


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """How much one program of a launch does; powers of two, none below 16 that a matrix product sees.

    `Blocks.fitting` chooses: as large as leaves PROGRAMS programs, since a large block reads a weight less often, and a
    small batch with large blocks leaves most of the GPU idle. For the network's own widths, in fp32, as compiled for
    compute capability 9.0 (registers per thread, of which 168 let three programs of 4 warps share a multiprocessor):

                         batch 75                           batch 1024
                         programs  registers  shared KiB    programs  registers  shared KiB
        convolution 1         153         40         7           520         96        25
        convolution 2         141         64        14           480        152        50
        head                   75         32         1           128         80         1
        weight_gradient       216        122        28           270        122        28
        first_gradient        153        100         5           260        100         5
        finish                119         32         0.5         119         30         0.5
    """

    filters: int = 16
    """Filters per program, in all convolutions. 16 wastes least of 15 and 38."""
    terms: int = 16
    """Terms per matrix product going forward: 15 and 75 of them are 1 and 5 blocks."""
    cells: tuple[int, int]
    """Cells per program going forward, of the first and of the second convolution."""
    weight_terms: int = 32
    weight_positions: int = 64
    """Positions per matrix product of `weight_gradient`, and of the terms of the weight the part per program."""
    weight_chunks: int
    """Programs that share the positions."""
    first_cells: int = 32
    first_taps: int = 16
    """Cells per turn of `first_gradient`, and taps per matrix product."""
    first_chunks: int
    """Programs that share the cells."""
    samples: int
    """Samples per program of `head`."""
    sum_rows: int = 64
    sum_width: int = 32
    """Numbers that a program of `finish` adds up at a time, and sums per program."""
    warps: int = 4
    stages: int = 3
    first_stages: int = 2
    """Warps per program; turns of a loop in flight at a time (`first_gradient` has no registers for a third)."""

    @classmethod
    def fitting(cls, sizes: Sizes, precision: str = "fp32") -> "BlockSizes":
        """Return the blocks for these sizes."""
        filters = [blocks(count, cls.filters) for count in sizes.filters]
        cells = [sizes.batch * pooled for pooled in sizes.pooled]
        tiles = filters[1] * blocks(sizes.filters[0] * KERNEL, cls.weight_terms)
        fits = max(1, 4096 // power_of_two(sizes.hidden))  # numbers of a block of `head`
        return cls(
            cells=(
                largest(cells[0], filters[0], (128, 64, 32)),
                largest(cells[1], filters[1], (128, 64, 32)),
            ),
            weight_chunks=shares(cells[1] * POOL, cls.weight_positions, tiles),
            first_chunks=shares(cells[0], cls.first_cells, filters[0]),
            # Single numbers of two bytes cannot be loaded in advance.
            first_stages=1 if precision == "bf16" else cls.first_stages,
            samples=min(fits, largest(sizes.batch, 2, (8, 4, 2, 1))),
        )

    @classmethod
    def variants(cls, sizes: Sizes, precision: str = "fp32") -> "dict[str, BlockSizes]":
        """Return what is worth trying on hardware: `fitting`, and one change to it at a time."""
        fitting = cls.fitting(sizes, precision)
        first, second = fitting.cells
        changes: dict[str, dict[str, Any]] = {
            "fitting": {},
            "2 warps": {"warps": 2},
            "8 warps": {"warps": 8},
            "2 stages": {"stages": 2},
            "4 stages": {"stages": 4, "first_stages": 3},
            "half the cells": {"cells": (max(16, first // 2), max(16, second // 2)), "first_cells": 16},
            "twice the cells": {"cells": (2 * first, 2 * second), "first_cells": 64},
            "32 filters": {"filters": 32},
            "32 terms": {"terms": 32, "first_taps": 32},
            "half the chunks": {
                "weight_chunks": max(1, fitting.weight_chunks // 2),
                "first_chunks": max(1, fitting.first_chunks // 2),
            },
        }
        return {name: replace(fitting, **change) for name, change in changes.items()}


def blocks(count: int, size: int) -> int:
    """Return how many blocks of `size` cover `count`."""
    return -(-count // size)


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def largest(count: int, each: int, choices: tuple[int, ...]) -> int:
    """Return the first of falling `choices` of a block's size that makes PROGRAMS programs, `each` per block."""
    return next((size for size in choices if blocks(count, size) * each >= PROGRAMS), choices[-1])


def shares(count: int, size: int, each: int) -> int:
    """Return how many programs share the blocks of `size` in `count`: for about 2 PROGRAMS in all, with equal turns."""
    turns = blocks(blocks(count, size) * each, 2 * PROGRAMS)
    return blocks(blocks(count, size), turns)


@dataclass(frozen=True, kw_only=True)
class KernelLaunch:
    """One kernel with everything but its pointers; calling it with those puts it into the current stream."""

    kernel: Any
    grid: tuple[int, ...]
    constants: dict[str, int | bool | str]
    warps: int
    stages: int

    def __call__(self, *arguments: torch.Tensor | float) -> None:
        """Launch on the current device."""
        self.kernel[self.grid](*arguments, **self.constants, num_warps=self.warps, num_stages=self.stages)


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The kernels of a step, in their order."""

    convolution1: KernelLaunch
    convolution2: KernelLaunch
    head: KernelLaunch
    weight_gradient: KernelLaunch
    first_gradient: KernelLaunch
    finish: KernelLaunch


def plan(sizes: Sizes, chosen: BlockSizes, *, precision: str, scaled: bool) -> Launches:
    """Return the launches of a step. Imports Triton; needs no GPU."""
    from horovod_study.workload import triton_kernels as kernels

    if precision == "bf16" and interpreted():
        precision = "bf16 interpreted"
    (filters1, filters2), (pooled1, pooled2) = sizes.filters, sizes.pooled
    first = {"CHANNELS": CHANNELS, "LENGTH": POINTS, "FILTERS": filters1, "POOLED": pooled1}
    second = {"CHANNELS": filters1, "LENGTH": pooled1, "FILTERS": filters2, "POOLED": pooled2}

    def launch(kernel: Any, grid: tuple[int, ...], **constants: int | bool | str) -> KernelLaunch:
        stages = chosen.first_stages if kernel is kernels.first_gradient else chosen.stages
        return KernelLaunch(kernel=kernel, grid=grid, constants=constants, warps=chosen.warps, stages=stages)

    def convolution(number: int) -> KernelLaunch:
        return launch(
            kernels.convolution,
            (
                blocks(sizes.batch * sizes.pooled[number], chosen.cells[number]),
                blocks(sizes.filters[number], chosen.filters),
            ),
            BATCH=sizes.batch,
            **(first, second)[number],
            FIRST=number == 0,
            SCALED=scaled and number == 0,
            PRECISION=precision,
            BLOCK_FILTERS=chosen.filters,
            BLOCK_CELLS=chosen.cells[number],
            BLOCK_TERMS=chosen.terms,
        )

    width1, width2, width3 = partial_widths(sizes)
    rows3 = blocks(sizes.batch, chosen.samples)
    return Launches(
        convolution1=convolution(0),
        convolution2=convolution(1),
        head=launch(
            kernels.head,
            (rows3,),
            BATCH=sizes.batch,
            HIDDEN=sizes.hidden,
            TARGETS=TARGETS,
            BLOCK_SAMPLES=chosen.samples,
            BLOCK_HIDDEN=power_of_two(sizes.hidden),
        ),
        weight_gradient=launch(
            kernels.weight_gradient,
            (
                chosen.weight_chunks,
                blocks(filters2, chosen.filters),
                blocks(filters1 * KERNEL, chosen.weight_terms),
            ),
            BATCH=sizes.batch,
            **second,
            CHUNKS=chosen.weight_chunks,
            PRECISION=precision,
            BLOCK_FILTERS=chosen.filters,
            BLOCK_TERMS=chosen.weight_terms,
            BLOCK_POSITIONS=chosen.weight_positions,
        ),
        first_gradient=launch(
            kernels.first_gradient,
            (chosen.first_chunks, blocks(filters1, chosen.filters)),
            BATCH=sizes.batch,
            **first,
            FILTERS2=filters2,
            POOLED2=pooled2,
            SCALED=scaled,
            CHUNKS=chosen.first_chunks,
            PRECISION=precision,
            BLOCK_FILTERS=chosen.filters,
            BLOCK_CELLS=chosen.first_cells,
            BLOCK_TAPS=chosen.first_taps,
            BLOCK_TERMS=power_of_two(CHANNELS * KERNEL),
        ),
        finish=launch(
            kernels.finish,
            (sum(blocks(width, chosen.sum_width) for width in (width1, width2, width3)) + 1,),
            ROWS1=chosen.first_chunks,
            ROWS2=chosen.weight_chunks,
            ROWS3=rows3,
            WIDTH1=width1,
            WIDTH2=width2,
            WIDTH3=width3,
            BETWEEN=sizes.hidden * filters2 * pooled2,
            NUMBERS=sizes.batch * TARGETS,
            BLOCK_ROWS=chosen.sum_rows,
            BLOCK_WIDTH=chosen.sum_width,
        ),
    )


def partial_widths(sizes: Sizes) -> tuple[int, int, int]:
    """Return how many gradients are summed up from parts: conv1's, conv2's, and all from fc1.bias on."""
    first, second = sizes.filters
    return (
        first * CHANNELS * KERNEL + first,
        second * first * KERNEL + second,
        sizes.hidden + TARGETS * sizes.hidden + TARGETS,
    )


class FusedNetwork:
    """Loss and gradients of a StressCNN by the kernels above; the update is left to an optimiser of torch.

    `model` is on the GPU (the current device) or, with TRITON_INTERPRET=1, on a CPU. Its parameters are read where they
    are at each call, and must stay there. `buffer`, float32 (number of parameters,), receives all gradients times
    `share`, in the order of model.parameters(); every parameter's `grad` becomes a view of it. `precision` is one of
    PRECISIONS: fp32 is IEEE float32; tf32 and bf16 round what goes into matrix products and sum up in float32; bf16
    also keeps activations as bfloat16. fc1 is left to cuBLAS, which takes TF32 where and only where
    torch.backends.cuda.matmul.allow_tf32 says so.

    All memory is taken here. A call launches kernels and nothing else: it can be captured in a CUDA graph, and gives
    the same bits every time. The first call compiles, so call once before capturing.

    Raises ConfigError where the kernels cannot run.
    """

    def __init__(
        self,
        model: StressCNN,
        *,
        batch: int,
        precision: str,
        buffer: torch.Tensor,
        share: float = 1.0,
        blocks: BlockSizes | None = None,
    ) -> None:
        device = model.fc1.weight.device
        reason = why_not()
        if not reason and device.type != "cuda" and not interpreted():
            reason = "the network is on the CPU"
        if reason:
            raise ConfigError(f"run: kernels fused cannot be used: {reason}; use kernels torch")
        if precision not in PRECISIONS:
            raise ConfigError(
                f"run: kernels fused know precision {', '.join(PRECISIONS)}, not {precision}; "
                "use one of these, or kernels torch"
            )
        sizes = Sizes.of(model, batch)
        self._model = model
        self._batch = batch
        self.blocks = blocks or BlockSizes.fitting(sizes, precision)
        self._factor = model.get_buffer("_factor").flatten()
        self._shift = model.get_buffer("_shift").flatten()
        scaled = bool((self._factor != 1).any() or (self._shift != 0).any())
        self.launches = plan(sizes, self.blocks, precision=precision, scaled=scaled)
        self._scale = share * 2 / (batch * TARGETS)
        self._inputs: tuple[torch.Tensor, torch.Tensor] | None = None

        self._gradients = buffer
        first = 0
        for parameter in model.parameters():
            parameter.grad = buffer[first : first + parameter.numel()].view_as(parameter)
            first += parameter.numel()

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        stored = torch.bfloat16 if precision == "bf16" else torch.float32
        (filters1, filters2), (pooled1, pooled2) = sizes.filters, sizes.pooled
        self._out1 = empty(batch, filters1, pooled1, dtype=stored)
        self._out2 = empty(batch, filters2 * pooled2, dtype=stored)
        self._winner1 = empty(batch, filters1, pooled1, dtype=torch.int8)
        self._winner2 = empty(batch, filters2, pooled2, dtype=torch.int8)
        self._hidden = empty(batch, sizes.hidden, dtype=stored)
        self._hidden_gradient = torch.empty_like(self._hidden)
        self._out2_gradient = torch.empty_like(self._out2)
        width1, width2, width3 = partial_widths(sizes)
        rows3 = self.launches.head.grid[0]
        self._partials1 = empty(self.blocks.first_chunks, width1)
        self._partials2 = empty(self.blocks.weight_chunks, width2)
        self._partials3 = empty(rows3, width3)
        self._losses = empty(rows3)
        self._loss = empty()
        # What fc1 computes with: the parameters themselves, or bfloat16 copies of them made in each step.
        fc1 = model.fc1
        self._cast = stored != torch.float32
        self._fc1_weight = torch.empty_like(fc1.weight, dtype=stored) if self._cast else fc1.weight.detach()
        self._fc1_bias = torch.empty_like(fc1.bias, dtype=stored) if self._cast else fc1.bias.detach()
        # Views of the buffer, held here: zero_grad() of an optimiser takes them from the parameters.
        first = sum(parameter.numel() for parameter in (*model.conv1.parameters(), *model.conv2.parameters()))
        self._fc1_weight_grad = buffer[first : first + fc1.weight.numel()].view_as(fc1.weight)
        self._fc1_weight_product = torch.empty_like(self._fc1_weight) if self._cast else self._fc1_weight_grad

    @torch.no_grad()
    def forward(
        self, curves: torch.Tensor, targets: torch.Tensor, order: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """Compute the predictions for rows order[state[0]] of `curves`, and all that `backward` needs of them.

        curves (S, C, L) and targets (S, P), float32; order (steps, B) and state (2,), int64; all contiguous, on the
        network's device, and the same memory up to `backward`. For batches from elsewhere: curves (B, C, L), order
        arange(B)[None], and `backward` with advance 0. Returns the mean squared error over B and P, shape (), always
        the same memory, **which holds it only after `backward`**: its sum is formed there with the others.
        """
        for name, tensor, dtype, shape in (
            ("curves", curves, torch.float32, (CHANNELS, POINTS)),
            ("targets", targets, torch.float32, (TARGETS,)),
            ("order", order, torch.int64, (self._batch,)),
        ):
            if tensor.shape[1:] != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"{name}: {tuple(tensor.shape)} {tensor.dtype} instead of (any number, "
                    f"{', '.join(map(str, shape))}) {dtype}, contiguous"
                )
        model = self._model
        bias1, bias2 = model.conv1.bias, model.conv2.bias
        assert bias1 is not None and bias2 is not None
        self._inputs = (curves, order)
        scaling = (self._factor, self._shift)
        self.launches.convolution1(curves, order, state, *scaling, model.conv1.weight, bias1, self._out1, self._winner1)
        self.launches.convolution2(
            self._out1, order, state, *scaling, model.conv2.weight, bias2, self._out2, self._winner2
        )
        if self._cast:
            self._fc1_weight.copy_(model.fc1.weight)
            self._fc1_bias.copy_(model.fc1.bias)
        torch.addmm(self._fc1_bias, self._out2, self._fc1_weight.t(), out=self._hidden)
        self.launches.head(
            self._hidden, order, state, targets, model.fc2.weight, model.fc2.bias,
            self._hidden_gradient, self._partials3, self._losses, self._scale,
        )  # fmt: skip
        return self._loss

    @torch.no_grad()
    def backward(self, ring: torch.Tensor, state: torch.Tensor, advance: int) -> None:
        """Write the gradients for the last `forward`; then ring[state[1] % R] = loss, state[0] += advance,
        state[1] += 1. `ring` (R,) float32.
        """
        assert self._inputs is not None, "backward comes after forward"
        curves, order = self._inputs
        model = self._model
        torch.mm(self._hidden_gradient.t(), self._out2, out=self._fc1_weight_product)
        if self._cast:
            self._fc1_weight_grad.copy_(self._fc1_weight_product)
        torch.mm(self._hidden_gradient, self._fc1_weight, out=self._out2_gradient)
        self.launches.weight_gradient(self._out2_gradient, self._winner2, self._out1, self._partials2)
        self.launches.first_gradient(
            self._out2_gradient, self._winner2, model.conv2.weight, self._winner1,
            curves, order, state, self._factor, self._shift, self._partials1,
        )  # fmt: skip
        self.launches.finish(
            self._partials1, self._partials2, self._partials3, self._losses,
            self._gradients, self._loss, ring, state, ring.numel(), advance,
        )  # fmt: skip
