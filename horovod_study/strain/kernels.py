"""A whole training step of the network in ten launches of kernels of its own, for CUDA graphs.

PyTorch launches a kernel for each operation, and at batch 75 most of what one takes is its launch. Here convolution,
pooling and ReLU are one kernel, the batch is read out of the data set by the kernel that uses it, the gradient between
the convolutions is never stored, and Adam is in the launch that sums up the gradients. The launches of a step (B
curves; f1 and f2 filters, h hidden units, of which the network has 15, 38 and 197):

    forward    convolution       gather, scaling, conv1, pool, ReLU -> (B, f1, 65)
               convolution       conv2, pool, ReLU                  -> (B, f2, 20)
               product           fc1                                -> (parts, B, h)
               head              ReLU, fc2, loss and its way back   -> (B, h), partial sums; the update is counted
    backward   product           gradient of fc1's input            -> (B, 20 f2)
               product           gradient of fc1.weight             -> (h, 20 f2), in its place      beside the former
               first_gradient    conv2's input, conv1's weight and bias -> partial sums
               weight_gradient   conv2's weight and bias            -> partial sums                  beside the former
               finish            sums of all partial sums, in a fixed order; loss; the step is counted; Adam
    update     update            Adam, where gradients are averaged between the two

What is beside another is on a second stream, and so on a branch of its own in the graph. Ten launches, or nine where
nothing is averaged.

The kernels are in `triton_kernels.py`. Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets, S
curves of the data set.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from horovod_study.errors import ConfigError
from horovod_study.measure.clock import KernelStamps
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.model import StressCNN

_PRECISIONS = ("fp32", "tf32", "bf16")
_HELD = "_parameters_and_state_in_one_piece"
KERNEL, POOL = 5, 3
PROGRAMS = 132
"""Programs that a launch should have at least: one for each multiprocessor of an H100 or H200. A constant, so that sums
are formed in the same order everywhere."""
_WARPS, _STAGES = 4, 3
NOTES = 64  # moments outside of steps that can be written down before the first is read
COUNTERS = 8  # tensors of parameters, each of which has a count of its updates in torch


def why_not() -> str:
    """Return why these kernels cannot be used here, or ''."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return (
            f"Triton cannot be imported ({error}); it comes with PyTorch for CUDA, elsewhere with the extra `kernels`"
        )
    return "" if torch.cuda.is_available() or interpreted() else "PyTorch sees no GPU"


def interpreted() -> bool:
    """Return whether Triton's interpreter takes the place of its compiler (TRITON_INTERPRET=1): on a CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that kernels are compiled for: those of the network, and the batch."""

    batch: int
    filters: tuple[int, int]
    pooled: tuple[int, int]  # positions after pooling, of the first and of the second convolution
    hidden: int

    @classmethod
    def of(cls, model: StressCNN, batch: int) -> "Sizes":
        """Read them off the model. Raises ConfigError where 32 bits cannot count what there is of a batch."""
        first, hidden = (POINTS - KERNEL + 1) // POOL, model.fc1.out_features
        filters, pooled = (model.conv1.out_channels, model.conv2.out_channels), (first, (first - KERNEL + 1) // POOL)
        if batch * POOL * max(filters[0] * pooled[0], filters[1] * pooled[1], hidden) >= 2**31:
            raise ConfigError(
                f"run: kernels fused count inside a batch with 32 bits, and batch {batch} of this network goes beyond; "
                "use a smaller batch, or kernels torch"
            )
        return cls(batch=batch, filters=filters, pooled=pooled, hidden=hidden)


class ProductBlocks(NamedTuple):
    """How one program of `product` goes through a matrix product: powers of two, none below 16."""

    rows: int
    columns: int
    terms: int
    parts: int = 1  # shares of the terms, each summed up by programs of its own


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """How much one program of a launch does; powers of two, none below 16 that a matrix product sees.

    `fitting` chooses what was fastest on an H100 at batch 75 and 1024 in fp32 and tf32 (docs/strain.md): a small batch
    wants small blocks, lest most of the GPU is idle, and a large one blocks that read a weight less often.
    """

    filters: tuple[int, int, int, int]  # of the two convolutions, of `weight_gradient` and of `first_gradient`
    terms: tuple[int, int]  # per matrix product of the two convolutions going forward
    cells: tuple[int, int]  # per program of the two convolutions going forward
    weight_terms: int  # of the weight, per program of `weight_gradient`
    weight_positions: int = 32  # per matrix product of it
    weight_chunks: int  # programs that share the positions
    first_cells: int  # per turn of `first_gradient`
    first_taps: int = 32  # per matrix product of it
    first_chunks: int  # programs that share the cells
    fc1: ProductBlocks  # the first linear layer going forward
    fc1_input: ProductBlocks  # the gradients of its input
    fc1_weight: ProductBlocks  # and of its weight
    samples: int  # per program of `head`
    sum_rows: int = 128  # numbers that a program of `finish` adds up at a time
    sum_width: int = 16  # its sums
    update: int = 1024  # parameters per program of an update
    warps: Mapping[str, int] = field(default_factory=dict)  # per program, by the name in `plan`; others have _WARPS
    stages: Mapping[str, int] = field(default_factory=dict)  # turns of a loop in flight; others have _STAGES

    @classmethod
    def fitting(cls, sizes: Sizes, precision: str = "fp32") -> "BlockSizes":
        """Return the blocks for these sizes."""
        # from 256 on blocks are chosen by arithmetic, below by the number of programs
        exact, large = precision == "fp32", sizes.batch >= 256
        cells = [sizes.batch * pooled for pooled in sizes.pooled]
        every = [max(16, _power_of_two(count)) for count in sizes.filters]  # all filters in one block
        filters = (16, 16 if exact else min(64, every[1]), 16, 16)
        first, second = (blocks(sizes.filters[number], filters[number]) for number in range(2))
        # Matrix units go through 16 filters and all terms as fast as through 32 of them; other units do not.
        weight_terms = 32 if exact else max(16, min(128, _power_of_two(sizes.filters[0] * KERNEL)))
        tiles = blocks(sizes.filters[1], filters[2]) * blocks(sizes.filters[0] * KERNEL, weight_terms)
        first_cells = largest(cells[0], blocks(sizes.filters[0], filters[3]), (64, 16))
        fits = max(1, 4096 // _power_of_two(sizes.hidden))  # numbers of a block of `head`
        return cls(
            filters=filters,
            terms=(16, 16 if exact or large else 128),
            cells=(
                largest(cells[0], first, (256, 64, 16) if exact else (64, 32)),
                largest(cells[1], second, (64, 16) if exact else (64, 32, 16)),
            ),
            weight_terms=weight_terms,
            weight_chunks=shares(cells[1] * POOL, cls.weight_positions, tiles, 6 if exact else 2),
            first_cells=first_cells,
            first_chunks=shares(cells[0], first_cells, blocks(sizes.filters[0], filters[3]), 4),
            fc1=ProductBlocks(64, 64, 32, parts=2) if large else ProductBlocks(32, 32, 64, parts=4),
            fc1_input=ProductBlocks(64 if exact else 128, 64, 32) if large else ProductBlocks(16, 32, 32),
            fc1_weight=ProductBlocks(32, 64, 32),
            samples=min(fits, largest(sizes.batch, 1, (4, 2, 1))),
            warps={"head": 8},
            # With the matrix units a second turn in flight costs `first_gradient` more registers than it saves time.
            stages={"first_gradient": 2 if exact else 1},
        )


def blocks(count: int, size: int) -> int:
    """Return how many blocks of `size` cover `count`."""
    return -(-count // size)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def largest(count: int, each: int, choices: tuple[int, ...]) -> int:
    """Return the first of falling `choices` of a block's size that makes PROGRAMS programs, `each` per block."""
    return next((size for size in choices if blocks(count, size) * each >= PROGRAMS), choices[-1])


def shares(count: int, size: int, each: int, times: int) -> int:
    """Return how many programs share the blocks of `size` in `count`: at most `times` PROGRAMS, with equal turns."""
    turns = blocks(blocks(count, size) * each, times * PROGRAMS)
    return blocks(blocks(count, size), turns)


class _KernelLaunch(NamedTuple):
    """One kernel with everything but its pointers; calling it with those puts it into the current stream."""

    kernel: Any
    grid: tuple[int, ...]
    constants: dict[str, float | str]
    warps: int
    stages: int

    def __call__(self, *arguments: torch.Tensor | float) -> None:
        """Launch on the current device."""
        self.kernel[self.grid](*arguments, **self.constants, num_warps=self.warps, num_stages=self.stages)


def plan(
    sizes: Sizes,
    chosen: BlockSizes,
    *,
    precision: str,
    scaled: bool,
    rule: dict[str, float] | None = None,
    merged: bool = False,
    timed: bool = False,
) -> SimpleNamespace:
    """Return the launches of a step by name, in their order. Imports Triton; needs no GPU.

    `rule`: the update, None where torch makes it. `merged`: it is in `finish`. `timed`: the times of the step are
    written down.
    """
    from horovod_study.strain import triton_kernels

    batch, hidden, filters, pooled = sizes.batch, sizes.hidden, sizes.filters, sizes.pooled
    features, padded, widths = filters[1] * pooled[1], _padded_row(hidden), partial_widths(sizes)
    adam = rule or adam_rule()
    first = {"BATCH": batch, "CHANNELS": CHANNELS, "LENGTH": POINTS, "FILTERS": filters[0], "POOLED": pooled[0]}
    second = {"BATCH": batch, "CHANNELS": filters[0], "LENGTH": pooled[0], "FILTERS": filters[1], "POOLED": pooled[1]}
    dots = {"PRECISION": "bf16 interpreted" if precision == "bf16" and interpreted() else precision}
    samples = blocks(batch, chosen.samples)

    def launch(name: str, *grid: int, **constants: Any) -> _KernelLaunch:
        warps, stages = chosen.warps.get(name, _WARPS), chosen.stages.get(name, _STAGES)
        kernel = getattr(triton_kernels, constants.pop("kernel", name))
        return _KernelLaunch(kernel, grid, constants, warps, stages)

    def convolution(place: int, shape: dict[str, int], **more: bool) -> _KernelLaunch:
        cells, each = chosen.cells[place], chosen.filters[place]
        grid = blocks(batch * pooled[place], cells), blocks(filters[place], each)
        size = {"BLOCK_FILTERS": each, "BLOCK_CELLS": cells, "BLOCK_TERMS": chosen.terms[place]}
        name = f"convolution{place + 1}"
        return launch(name, *grid, kernel="convolution", FIRST=place == 0, **more, **shape, **dots, **size)

    def product(name: str, shape: Sequence[int], left: Sequence[int], right: Sequence[int], row: int) -> _KernelLaunch:
        """`shape` is rows, columns, terms; `left` and `right` are the strides of the factors, `row` of a result's."""
        each: ProductBlocks = getattr(chosen, name)
        size = each.rows, each.columns, each.terms
        constants = {
            **dict(zip(("ROWS", "COLUMNS", "TERMS"), shape, strict=True)),
            **dict(zip(("LEFT_ROW", "LEFT_TERM", "RIGHT_TERM", "RIGHT_COLUMN"), (*left, *right), strict=True)),
            **dict(zip(("BLOCK_ROWS", "BLOCK_COLUMNS", "BLOCK_TERMS"), size, strict=True)),
            "PART": blocks(blocks(shape[2], each.terms), each.parts) * each.terms,
        }
        grid = blocks(shape[0], each.rows), blocks(shape[1], each.columns), each.parts
        return launch(name, *grid, kernel="product", OUT_ROW=row, **constants, **dots)

    weight_grid = blocks(filters[1], chosen.filters[2]), blocks(filters[0] * KERNEL, chosen.weight_terms)
    sums, between = sum(blocks(width, chosen.sum_width) for width in widths), hidden * features
    updates = blocks(between, chosen.update) if merged else 0
    return SimpleNamespace(
        convolution1=convolution(0, first, SCALED=scaled, TIMED=timed),
        convolution2=convolution(1, second, SCALED=False, TIMED=False),
        fc1=product("fc1", (batch, hidden, features), (features, 1), (1, features), padded),
        head=launch(
            "head", samples, COUNTERS=0 if rule is None else COUNTERS, BATCH=batch, PARTS=chosen.fc1.parts,
            HIDDEN=hidden, ROW=padded, TARGETS=TARGETS, BLOCK_SAMPLES=chosen.samples,
            BLOCK_HIDDEN=_power_of_two(hidden),
        ),
        fc1_input=product("fc1_input", (batch, features, hidden), (padded, 1), (features, 1), features),
        fc1_weight=product("fc1_weight", (hidden, features, batch), (1, padded), (features, 1), features),
        weight_gradient=launch(
            "weight_gradient", chosen.weight_chunks, *weight_grid, **second, **dots, CHUNKS=chosen.weight_chunks,
            BLOCK_FILTERS=chosen.filters[2], BLOCK_TERMS=chosen.weight_terms, BLOCK_POSITIONS=chosen.weight_positions,
        ),
        first_gradient=launch(
            "first_gradient", chosen.first_chunks, blocks(filters[0], chosen.filters[3]), **first, **dots,
            SCALED=scaled, FILTERS2=filters[1], POOLED2=pooled[1], CHUNKS=chosen.first_chunks,
            BLOCK_FILTERS=chosen.filters[3], BLOCK_CELLS=chosen.first_cells, BLOCK_TAPS=chosen.first_taps,
            BLOCK_TERMS=_power_of_two(CHANNELS * KERNEL),
        ),
        finish=launch(
            "finish", 1 + sums + updates, ROWS1=chosen.first_chunks, ROWS2=chosen.weight_chunks, ROWS3=samples,
            WIDTH1=widths[0], WIDTH2=widths[1], WIDTH3=widths[2], BETWEEN=between, NUMBERS=batch * TARGETS,
            BLOCK_ROWS=chosen.sum_rows, BLOCK_WIDTH=chosen.sum_width, BLOCK_UPDATE=chosen.update, UPDATE=merged,
            TIMED=timed, **adam,
        ),
        update=launch(
            "update", blocks(sum(widths) + between, chosen.update), COUNT=sum(widths) + between,
            BLOCK_UPDATE=chosen.update, **adam,
        ),
    )  # fmt: skip


def _padded_row(hidden: int) -> int:
    """Return how far rows of `hidden` numbers are apart, so that each begins where 16 bytes can be read at once."""
    return blocks(hidden, 16) * 16


def partial_widths(sizes: Sizes) -> tuple[int, int, int]:
    """Return how many gradients are summed up from parts: conv1's, conv2's, and all from fc1.bias on."""
    first, second = sizes.filters
    return (
        first * CHANNELS * KERNEL + first,
        second * first * KERNEL + second,
        sizes.hidden + TARGETS * sizes.hidden + TARGETS,
    )


def adam_rule(
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, decay: float = 0.0, decoupled: bool = False
) -> dict[str, float]:
    """Return what the kernels of torch's Adam or AdamW are compiled with; the rate is on the device, and not in it."""
    logs = {"LOG_BETA1": math.log(beta1), "LOG_BETA2": math.log(beta2)}
    return {**logs, "BETA1": beta1, "BETA2": beta2, "EPSILON": epsilon, "DECAY": decay, "DECOUPLED": decoupled}


def rule_of(optimizer: torch.optim.Optimizer) -> dict[str, float] | None:
    """Return `adam_rule` of an optimiser; None where that follows another rule, or does more."""
    group, *others = optimizer.param_groups
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) or others:
        return None
    if not group["fused"] or group["amsgrad"] or group["maximize"]:
        return None
    (beta1, beta2), decoupled = group["betas"], isinstance(optimizer, torch.optim.AdamW)
    return adam_rule(beta1, beta2, group["eps"], group["weight_decay"], decoupled)


class FusedNetwork:
    """Loss, gradients and, with `optimizer`, the update of a StressCNN by the kernels above.

    `model` is on the GPU (the current device) or, with TRITON_INTERPRET=1, on a CPU. Its parameters are read where they
    are at each call, and must stay there. `buffer`, float32 (number of parameters,), receives all gradients times
    `share`, in the order of model.parameters(); every parameter's `grad` becomes a view of it. `precision` is one of
    _PRECISIONS: fp32 is IEEE float32; tf32 and bf16 round what goes into matrix products and sum up in float32; bf16
    also keeps activations as bfloat16.

    `optimizer`: an Adam or AdamW for which `rule_of` is not None, with its rate in a tensor; left out, the update is
    not made here. `adopt` must be called before the first step and whenever the optimiser was given other state.
    `merged`: `backward` makes the update too, since nothing comes between. `slots`: the kernels write down when each of
    so many steps began and ended, for `stamps`; 0 leaves it out, and on a CPU it must be.

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
        optimizer: torch.optim.Optimizer | None = None,
        merged: bool = False,
        slots: int = 0,
    ) -> None:
        device = model.fc1.weight.device
        reason = why_not()
        if not reason and device.type != "cuda" and not interpreted():
            reason = "the network is on the CPU"
        elif not reason and precision not in _PRECISIONS:
            reason = f"they know precision {', '.join(_PRECISIONS)}, not {precision}"
        if reason:
            raise ConfigError(f"run: kernels fused cannot be used: {reason}; use kernels torch")
        sizes = Sizes.of(model, batch)
        self._model, self._batch, self._optimizer = model, batch, optimizer
        self.blocks = blocks or BlockSizes.fitting(sizes, precision)
        self._factor = model.get_buffer("_factor").flatten()
        self._shift = model.get_buffer("_shift").flatten()
        scaled = bool((self._factor != 1).any() or (self._shift != 0).any())
        rule = None if optimizer is None else rule_of(optimizer)
        assert rule is not None or optimizer is None, "only Adam and AdamW have kernels"
        self.launches = plan(
            sizes, self.blocks, precision=precision, scaled=scaled, rule=rule, merged=merged, timed=slots > 0
        )
        self.updates = optimizer is not None
        """Whether the update is made here."""
        self._slots, self.stamps = slots, None
        self._times = times = torch.zeros(2 * slots + 1 + NOTES, dtype=torch.int64, device=device)
        if slots:
            from horovod_study.strain.triton_kernels import note

            self.stamps = KernelStamps(times, slots=slots, note=lambda place: note[(1,)](times, place, num_warps=1))
        self._scale = share * 2 / (batch * TARGETS)
        self._inputs: tuple[torch.Tensor, torch.Tensor] | None = None
        self._beside_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

        self._gradients = buffer
        for parameter, gradient in zip(model.parameters(), model.views(buffer), strict=True):
            parameter.grad = gradient
        self._fc1_weight_grad = model.fc1.weight.grad  # zero_grad() of an optimiser takes it from the parameter

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        stored = torch.bfloat16 if precision == "bf16" else torch.float32
        (filters1, filters2), (pooled1, pooled2) = sizes.filters, sizes.pooled
        self._out1 = empty(batch, filters1, pooled1, dtype=stored)
        self._out2 = empty(batch, filters2 * pooled2, dtype=stored)
        self._winner1 = empty(batch, filters1, pooled1, dtype=torch.int8)
        self._winner2 = empty(batch, filters2, pooled2, dtype=torch.int8)
        self._hidden = empty(self.blocks.fc1.parts, batch, _padded_row(sizes.hidden))
        self._hidden_gradient = empty(batch, _padded_row(sizes.hidden), dtype=stored)
        self._out2_gradient = torch.empty_like(self._out2)
        width1, width2, width3 = partial_widths(sizes)
        rows3 = self.launches.head.grid[0]
        self._partials1 = empty(self.blocks.first_chunks, width1)
        self._partials2 = empty(self.blocks.weight_chunks, width2)
        self._partials3 = empty(rows3, width3)
        self._losses = empty(rows3)
        self._loss = empty()
        # The parameters, Adam's moments and its counts, each kind in one piece, the same for all captured steps of an
        # optimiser; without an update here nothing reads them.
        held = (buffer, buffer, buffer, empty(1)) if optimizer is None else getattr(optimizer, _HELD, None)
        if held is None:
            held = (*(torch.zeros_like(buffer) for _ in range(3)), torch.zeros(COUNTERS, device=device))
            setattr(optimizer, _HELD, held)
        self._parameters, self._moments1, self._moments2, self._updates = held
        self._rate = self._updates if optimizer is None else optimizer.param_groups[0]["lr"]

    @torch.no_grad()
    def adopt(self) -> None:
        """Move the parameters and the optimiser's state to where `update` works on them; torch goes on to see them."""
        if self._optimizer is None:
            return
        places = (self._model.views(each) for each in (self._parameters, self._moments1, self._moments2))
        for parameter, place, *own in zip(self._model.parameters(), *places, self._updates.unbind(), strict=True):
            state = self._optimizer.state[parameter]
            # what torch's Adam keeps of a parameter
            for name, tensor in zip(("exp_avg", "exp_avg_sq", "step"), own, strict=True):
                tensor.copy_(state.get(name, torch.zeros(())))
                state[name] = tensor
            place.copy_(parameter)
            parameter.data = place

    @torch.no_grad()
    def forward(
        self, curves: torch.Tensor, targets: torch.Tensor, order: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """Compute the predictions for rows order[state[0]] of `curves`, and all that `backward` needs of them.

        curves (S, C, L) and targets (S, P), float32; order (steps, B) and state (2,), int64; all contiguous, on the
        network's device, and the same memory up to `backward`. For batches from elsewhere: curves (B, C, L), order
        arange(B)[None], and `backward` with advance 0. Returns the mean squared error over B and P, shape (), always
        the same memory, **which holds it only after `backward`**: its sum is formed there with the others. With an
        optimizer its number of updates goes up by one here.
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
        model, self._inputs = self._model, (curves, order)
        scaling, times = (order, state, self._factor, self._shift), (self._times, self._slots)
        for launch, x, layer, out, winner in (
            (self.launches.convolution1, curves, model.conv1, self._out1, self._winner1),
            (self.launches.convolution2, self._out1, model.conv2, self._out2, self._winner2),
        ):
            launch(x, *scaling, layer.weight, layer.bias, out, winner, *times)
        self.launches.fc1(self._out2, model.fc1.weight, self._hidden)
        self.launches.head(
            self._hidden, model.fc1.bias, order, state, targets, model.fc2.weight, model.fc2.bias,
            self._hidden_gradient, self._partials3, self._losses, self._updates, self._scale,
        )  # fmt: skip
        return self._loss

    @torch.no_grad()
    def backward(self, ring: torch.Tensor, state: torch.Tensor, advance: int) -> None:
        """Write the gradients for the last `forward`; then ring[state[1] % R] = loss, state[0] += advance,
        state[1] += 1. `ring` (R,) float32. The update follows where it is merged.
        """
        assert self._inputs is not None, "backward comes after forward"
        curves, order = self._inputs
        model = self._model
        with self._beside():
            self.launches.fc1_weight(self._hidden_gradient, self._out2, self._fc1_weight_grad)
        self.launches.fc1_input(self._hidden_gradient, model.fc1.weight, self._out2_gradient)
        with self._beside():
            self.launches.weight_gradient(self._out2_gradient, self._winner2, self._out1, self._partials2)
        self.launches.first_gradient(
            self._out2_gradient, self._winner2, model.conv2.weight, self._winner1,
            curves, order, state, self._factor, self._shift, self._partials1,
        )  # fmt: skip
        if self._beside_stream is not None:
            torch.cuda.current_stream().wait_stream(self._beside_stream)
        self.launches.finish(
            self._partials1, self._partials2, self._partials3, self._losses, self._gradients, self._loss, ring, state,
            self._parameters, self._moments1, self._moments2, self._updates, self._rate, self._times, ring.numel(),
            advance,
        )  # fmt: skip

    @torch.no_grad()
    def update(self) -> None:
        """Update the parameters from the gradients in the buffer, counted by the last `forward`."""
        self.launches.update(
            self._parameters, self._gradients, self._moments1, self._moments2, self._updates, self._rate
        )

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Launch on the second stream, after what the current one has so far and beside what it is given next."""
        if self._beside_stream is None:
            yield
            return
        self._beside_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside_stream):
            yield
