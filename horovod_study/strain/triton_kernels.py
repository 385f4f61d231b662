"""The kernels of `kernels.FusedNetwork`, in Triton. Importing this module needs Triton.

A kernel is started as a grid of programs. Each program works on blocks, small arrays whose sides are powers of two, and
asks for its place in the grid by `tl.program_id`. What a block has too many is masked: not loaded (0 instead), not
stored. All sizes are `tl.constexpr`: known when the kernel is compiled, once per network and batch.

    sample    0 .. B-1, a curve of the batch
    filter    an output channel of a convolution
    term      0 .. 5 C - 1: one of the products that a filter sums up, 5 * channel + offset, as in its weight
    position  where a filter is laid on: 0 .. 3 * pooled - 1 (what pooling leaves over is never computed)
    cell      position // 3, what pooling makes of three positions; of all samples, counted on: sample * pooled + cell

A convolution is a matrix product, (filters, terms) times (terms, positions of all samples), whose second factor is
never stored: its columns are windows of the curve, read where they lie. Blocks have positions or cells on their last
axis, along which neighbouring threads go, so that they read neighbouring numbers.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

KERNEL = tl.constexpr(5)
POOL = tl.constexpr(3)
_NO_WINNER = tl.constexpr(3)  # ReLU cut the largest of the three: no gradient goes through


@triton.jit
def _add_product(total, left, right, PRECISION: tl.constexpr):
    """Return total + left @ right: (M, N), (M, K), (K, N); summed in float32 in every precision."""
    if PRECISION == "bf16":
        total = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    elif PRECISION == "bf16 interpreted":  # the interpreter takes the bits of bfloat16 for integers
        left, right = left.to(tl.bfloat16).to(tl.float32), right.to(tl.bfloat16).to(tl.float32)
        total = tl.dot(left, right, total)
    elif PRECISION == "tf32":
        total = tl.dot(left, right, total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _rows(order, state, sample, inside, BATCH: tl.constexpr):
    """Where the samples are in the data set: entries of row state[0] of `order`.

    int64, as must be all that is computed of them: four million curves have more numbers than int32 counts. Inside a
    batch int32 is enough, and cheaper.
    """
    return tl.load(order + tl.load(state) * BATCH + sample, mask=inside, other=0)


@triton.jit
def _windows(x, start, term, inside, CHANNELS: tl.constexpr, LENGTH: tl.constexpr):
    """Return the windows of x, (terms, columns), that begin at `start` (columns,), counted from the beginning of x."""
    place = term // KERNEL * LENGTH + term % KERNEL
    mask = (term < CHANNELS * KERNEL)[:, None] & inside[None, :]
    return tl.load(x + (start[None, :] + place[:, None]), mask=mask, other=0.0)


@triton.jit
def _scaled_windows(
    x, factor, shift, start, term, inside, CHANNELS: tl.constexpr, LENGTH: tl.constexpr, SCALED: tl.constexpr
):
    """The same with the input scaling of the network applied."""
    window = _windows(x, start, term, inside, CHANNELS, LENGTH)
    if SCALED:
        real = term < CHANNELS * KERNEL
        by = tl.load(factor + term // KERNEL, mask=real, other=0.0)
        plus = tl.load(shift + term // KERNEL, mask=real, other=0.0)
        window = window * by[:, None] + plus[:, None]
    return window


@triton.jit
def _unpooled(gradient, winner, sample, filters, position, inside, FILTERS: tl.constexpr, POOLED: tl.constexpr):
    """Return the gradient before pooling and ReLU at `position`: that of its cell where it was the winner, else 0."""
    cell = sample * (FILTERS * POOLED) + filters * POOLED + position // POOL
    won = tl.load(winner + cell, mask=inside, other=_NO_WINNER) == position % POOL
    # Chosen after loading: a load that waits for another takes twice as long.
    return tl.where(won, tl.load(gradient + cell, mask=inside, other=0.0).to(tl.float32), 0.0)


@triton.jit(do_not_specialize=["slots"])
def convolution(
    x, order, state, factor, shift, weight, bias, out, winner, times, slots,
    BATCH: tl.constexpr, CHANNELS: tl.constexpr, LENGTH: tl.constexpr, FILTERS: tl.constexpr, POOLED: tl.constexpr,
    FIRST: tl.constexpr, SCALED: tl.constexpr, TIMED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_FILTERS: tl.constexpr, BLOCK_CELLS: tl.constexpr, BLOCK_TERMS: tl.constexpr,
):  # fmt: skip
    """Convolution, max pooling by 3 and ReLU: x (rows, channels, length) -> out, winner (B, filters, pooled).

    `winner` says which of a cell's three positions won, as int8; of equal ones the first. The first convolution reads
    its samples out of the data set (`order`, `state`) and scales them; the second has them in a row. TIMED: this is
    where the step begins, which goes into `times` (KernelStamps).
    Grid: (blocks of cells, blocks of filters).
    """
    if TIMED:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            slot = tl.load(state + 1) % slots
            tl.store(times + 2 * slots, slot)  # for the end: state moves on before
            tl.store(times + slot, globaltimer())
    cells = tl.program_id(0) * BLOCK_CELLS + tl.arange(0, BLOCK_CELLS)
    filters = tl.program_id(1) * BLOCK_FILTERS + tl.arange(0, BLOCK_FILTERS)
    inside = cells < BATCH * POOLED
    real = filters < FILTERS
    sample, cell = cells // POOLED, cells % POOLED
    row = sample
    if FIRST:
        row = _rows(order, state, sample, inside, BATCH)
    start = row * (CHANNELS * LENGTH) + cell * POOL

    # One sum for each position of a cell; equal windows give equal bits, so that ties are ties.
    b = tl.load(bias + filters, mask=real, other=0.0)[:, None]
    sum0 = tl.zeros((BLOCK_FILTERS, BLOCK_CELLS), tl.float32) + b
    sum1 = tl.zeros((BLOCK_FILTERS, BLOCK_CELLS), tl.float32) + b
    sum2 = tl.zeros((BLOCK_FILTERS, BLOCK_CELLS), tl.float32) + b
    for first in tl.range(0, CHANNELS * KERNEL, BLOCK_TERMS):
        term = first + tl.arange(0, BLOCK_TERMS)
        mask = real[:, None] & (term < CHANNELS * KERNEL)[None, :]
        w = tl.load(weight + filters[:, None] * (CHANNELS * KERNEL) + term[None, :], mask=mask, other=0.0)
        x0 = _scaled_windows(x, factor, shift, start, term, inside, CHANNELS, LENGTH, SCALED)
        x1 = _scaled_windows(x, factor, shift, start + 1, term, inside, CHANNELS, LENGTH, SCALED)
        x2 = _scaled_windows(x, factor, shift, start + 2, term, inside, CHANNELS, LENGTH, SCALED)
        sum0 = _add_product(sum0, w, x0, PRECISION)
        sum1 = _add_product(sum1, w, x1, PRECISION)
        sum2 = _add_product(sum2, w, x2, PRECISION)

    # NaN wins, and stays: it is the one number that differs from itself.
    later = (sum1 > sum0) | (sum1 != sum1)
    best, which = tl.where(later, sum1, sum0), tl.where(later, 1, 0)
    later = (sum2 > best) | (sum2 != sum2)
    best, which = tl.where(later, sum2, best), tl.where(later, 2, which)
    cut = best <= 0
    at = sample[None, :] * (FILTERS * POOLED) + filters[:, None] * POOLED + cell[None, :]
    mask = real[:, None] & inside[None, :]
    tl.store(out + at, tl.where(cut, 0.0, best), mask=mask)
    tl.store(winner + at, tl.where(cut, _NO_WINNER, which), mask=mask)


@triton.jit
def product(
    left, right, out,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, PART: tl.constexpr,
    LEFT_ROW: tl.constexpr, LEFT_TERM: tl.constexpr, RIGHT_TERM: tl.constexpr, RIGHT_COLUMN: tl.constexpr,
    OUT_ROW: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_TERMS: tl.constexpr,
):  # fmt: skip
    """out (parts, rows, columns) = left (rows, terms) times right (terms, columns), part p over its PART of the terms.

    The constants LEFT_ROW and so on say how far apart neighbours are: a transposed matrix is read in its own place.
    Grid: (blocks of rows, blocks of columns, parts).
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    part = tl.program_id(2)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for first in tl.range(0, PART, BLOCK_TERMS):
        term = part * PART + first + tl.arange(0, BLOCK_TERMS)
        mask = (row < ROWS)[:, None] & (term < TERMS)[None, :]
        a = tl.load(left + row[:, None] * LEFT_ROW + term[None, :] * LEFT_TERM, mask=mask, other=0.0)
        mask = (term < TERMS)[:, None] & (column < COLUMNS)[None, :]
        b = tl.load(right + term[:, None] * RIGHT_TERM + column[None, :] * RIGHT_COLUMN, mask=mask, other=0.0)
        total = _add_product(total, a, b, PRECISION)
    at = part * (ROWS * OUT_ROW) + row[:, None] * OUT_ROW + column[None, :]
    tl.store(out + at, total, mask=(row < ROWS)[:, None] & (column < COLUMNS)[None, :])


@triton.jit
def head(
    z, bias1, order, state, targets, weight, bias, dz, partials, losses, updates, scale,
    BATCH: tl.constexpr, PARTS: tl.constexpr, HIDDEN: tl.constexpr, ROW: tl.constexpr, TARGETS: tl.constexpr,
    COUNTERS: tl.constexpr, BLOCK_SAMPLES: tl.constexpr, BLOCK_HIDDEN: tl.constexpr,
):  # fmt: skip
    """The first layer's bias, ReLU, the last layer, the loss, and the way back to the first layer's output.

    `z` (parts, B, hidden) has that output before its bias, in parts to be summed up; its rows, and those of dz, are ROW
    numbers apart. Writes dz (B, hidden) and, for each program, its samples' share of the gradients of fc1.bias,
    fc2.weight and fc2.bias, one after the other, to a row of `partials`, and of the sum of squared errors to `losses`.
    `scale` times the error is the derivative of the loss. Here too the COUNTERS of `updates` move on to the update of
    this step, which nothing in this launch reads.
    Grid: (blocks of samples,).
    """
    program = tl.program_id(0)
    sample = program * BLOCK_SAMPLES + tl.arange(0, BLOCK_SAMPLES)
    hidden = tl.arange(0, BLOCK_HIDDEN)
    inside = sample < BATCH
    real = hidden < HIDDEN
    row = _rows(order, state, sample, inside, BATCH)
    partials += program * (HIDDEN + TARGETS * HIDDEN + TARGETS)

    at = sample[:, None] * ROW + hidden[None, :]
    mask = inside[:, None] & real[None, :]
    before = (
        tl.zeros((BLOCK_SAMPLES, BLOCK_HIDDEN), tl.float32) + tl.load(bias1 + hidden, mask=real, other=0.0)[None, :]
    )
    for part in tl.static_range(PARTS):
        before += tl.load(z + part * (BATCH * ROW) + at, mask=mask, other=0.0)
    after = tl.where(before <= 0, 0.0, before)
    back = tl.zeros((BLOCK_SAMPLES, BLOCK_HIDDEN), tl.float32)
    squares = tl.zeros((BLOCK_SAMPLES,), tl.float32)
    for target in tl.static_range(TARGETS):
        w = tl.load(weight + target * HIDDEN + hidden, mask=real, other=0.0)
        out = tl.sum(after * w[None, :], axis=1) + tl.load(bias + target)
        error = tl.where(inside, out - tl.load(targets + row * TARGETS + target, mask=inside, other=0.0), 0.0)
        squares += error * error
        d = error * scale
        back += d[:, None] * w[None, :]
        place = HIDDEN + target * HIDDEN + hidden
        tl.store(partials + place, tl.sum(d[:, None] * after, axis=0), mask=real)
        tl.store(partials + HIDDEN + TARGETS * HIDDEN + target, tl.sum(d, axis=0))
    back = tl.where(before <= 0, 0.0, back)
    tl.store(dz + at, back, mask=mask)
    tl.store(partials + hidden, tl.sum(back, axis=0), mask=real)
    tl.store(losses + program, tl.sum(squares, axis=0))
    if COUNTERS > 0:
        if program == 0:
            counters = tl.arange(0, COUNTERS)
            tl.store(updates + counters, tl.load(updates + counters) + 1.0)


@triton.jit
def weight_gradient(
    gradient, winner, x, partials,
    BATCH: tl.constexpr, CHANNELS: tl.constexpr, LENGTH: tl.constexpr, FILTERS: tl.constexpr, POOLED: tl.constexpr,
    CHUNKS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_FILTERS: tl.constexpr, BLOCK_TERMS: tl.constexpr, BLOCK_POSITIONS: tl.constexpr,
):  # fmt: skip
    """The gradients of a convolution's weight and bias: the sum over positions of gradient times window.

    Program c of the CHUNKS sums up blocks c, c + CHUNKS, ... of positions into row c of `partials`: first the weight,
    then the bias. `gradient` and `winner` (B, filters, pooled) belong to its output, x (B, channels, length) is its
    input. Grid: (chunks, blocks of filters, blocks of terms).
    """
    chunk = tl.program_id(0)
    filters = tl.program_id(1) * BLOCK_FILTERS + tl.arange(0, BLOCK_FILTERS)
    term = tl.program_id(2) * BLOCK_TERMS + tl.arange(0, BLOCK_TERMS)
    real = filters < FILTERS
    total = tl.zeros((BLOCK_FILTERS, BLOCK_TERMS), tl.float32)
    alone = tl.zeros((BLOCK_FILTERS,), tl.float32)
    for first in tl.range(chunk * BLOCK_POSITIONS, BATCH * POOLED * POOL, CHUNKS * BLOCK_POSITIONS):
        positions = first + tl.arange(0, BLOCK_POSITIONS)
        inside = positions < BATCH * POOLED * POOL
        sample, position = positions // (POOLED * POOL), positions % (POOLED * POOL)
        mask = real[:, None] & inside[None, :]
        d = _unpooled(gradient, winner, sample[None, :], filters[:, None], position[None, :], mask, FILTERS, POOLED)
        window = _windows(x, sample * (CHANNELS * LENGTH) + position, term, inside, CHANNELS, LENGTH)
        total = _add_product(total, d, tl.trans(window), PRECISION)
        alone += tl.sum(d, axis=1)

    partials += chunk * (FILTERS * CHANNELS * KERNEL + FILTERS)
    mask = real[:, None] & (term < CHANNELS * KERNEL)[None, :]
    tl.store(partials + filters[:, None] * (CHANNELS * KERNEL) + term[None, :], total, mask=mask)
    if tl.program_id(2) == 0:
        tl.store(partials + FILTERS * CHANNELS * KERNEL + filters, alone, mask=real)


@triton.jit
def first_gradient(
    gradient, winner2, weight2, winner1, x, order, state, factor, shift, partials,
    BATCH: tl.constexpr, CHANNELS: tl.constexpr, LENGTH: tl.constexpr, FILTERS: tl.constexpr, POOLED: tl.constexpr,
    FILTERS2: tl.constexpr, POOLED2: tl.constexpr, SCALED: tl.constexpr, CHUNKS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_FILTERS: tl.constexpr, BLOCK_CELLS: tl.constexpr, BLOCK_TAPS: tl.constexpr, BLOCK_TERMS: tl.constexpr,
):  # fmt: skip
    """Back through the second convolution to the weight and bias of the first, without storing what is between.

    The gradient of a cell between the two is the sum over taps, 5 * filter of the second + offset, of that filter's
    weight times the gradient at the position `offset` before the cell. It then goes to the winner of the cell, and
    times the winner's window to the weight. Rows of `partials` as in `weight_gradient`.
    Grid: (chunks, blocks of filters).
    """
    chunk = tl.program_id(0)
    filters = tl.program_id(1) * BLOCK_FILTERS + tl.arange(0, BLOCK_FILTERS)
    term = tl.arange(0, BLOCK_TERMS)
    real = filters < FILTERS
    total = tl.zeros((BLOCK_FILTERS, BLOCK_TERMS), tl.float32)
    alone = tl.zeros((BLOCK_FILTERS,), tl.float32)
    for first in tl.range(chunk * BLOCK_CELLS, BATCH * POOLED, CHUNKS * BLOCK_CELLS):
        cells = first + tl.arange(0, BLOCK_CELLS)
        inside = cells < BATCH * POOLED
        sample, cell = cells // POOLED, cells % POOLED

        between = tl.zeros((BLOCK_FILTERS, BLOCK_CELLS), tl.float32)
        for first_tap in tl.range(0, FILTERS2 * KERNEL, BLOCK_TAPS):
            tap = first_tap + tl.arange(0, BLOCK_TAPS)
            filter2, offset = tap // KERNEL, tap % KERNEL
            tapped = tap < FILTERS2 * KERNEL
            at = filter2[None, :] * (FILTERS * KERNEL) + filters[:, None] * KERNEL + offset[None, :]
            w = tl.load(weight2 + at, mask=real[:, None] & tapped[None, :], other=0.0)
            position = cell[None, :] - offset[:, None]
            mask = tapped[:, None] & inside[None, :] & (position >= 0) & (position < POOLED2 * POOL)
            d = _unpooled(gradient, winner2, sample[None, :], filter2[:, None], position, mask, FILTERS2, POOLED2)
            between = _add_product(between, w, d, PRECISION)

        at = sample[None, :] * (FILTERS * POOLED) + filters[:, None] * POOLED + cell[None, :]
        which = tl.load(winner1 + at, mask=real[:, None] & inside[None, :], other=_NO_WINNER)
        start = _rows(order, state, sample, inside, BATCH) * (CHANNELS * LENGTH) + cell * POOL
        for place in tl.static_range(POOL):
            d = tl.where(which == place, between, 0.0)
            window = _scaled_windows(x, factor, shift, start + place, term, inside, CHANNELS, LENGTH, SCALED)
            total = _add_product(total, d, tl.trans(window), PRECISION)
            alone += tl.sum(d, axis=1)

    partials += chunk * (FILTERS * CHANNELS * KERNEL + FILTERS)
    mask = real[:, None] & (term < CHANNELS * KERNEL)[None, :]
    tl.store(partials + filters[:, None] * (CHANNELS * KERNEL) + term[None, :], total, mask=mask)
    tl.store(partials + FILTERS * CHANNELS * KERNEL + filters, alone, mask=real)


@triton.jit
def _added_up(
    partials, column, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):
    """Return the sums over the rows of `partials` (rows, width) in `column`, always in the same order."""
    total = tl.zeros((BLOCK_WIDTH,), tl.float32)
    for first in tl.range(0, ROWS, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)
        mask = (row < ROWS)[:, None] & (column < WIDTH)[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        total += tl.sum(tl.load(partials + at, mask=mask, other=0.0), axis=0)
    return total


@triton.jit
def _adam(
    parameters, moments1, moments2, updates, rate, gradient, at, mask,
    LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
    EPSILON: tl.constexpr, DECAY: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Adam's update (Kingma and Ba, 2015, algorithm 1) of the parameters `at`, epsilon and decay where torch has them.

    `updates` counts this one already. With DECOUPLED the decay is AdamW's (Loshchilov and Hutter, 2019).
    """
    # In float64: of 1 - 0.999 ** t little is left in float32.
    made = tl.load(updates).to(tl.float64)
    lr = tl.load(rate).to(tl.float64)
    size = (lr / (1.0 - tl.exp(made * LOG_BETA1))).to(tl.float32)
    root = tl.sqrt(1.0 - tl.exp(made * LOG_BETA2)).to(tl.float32)
    old = tl.load(parameters + at, mask=mask, other=0.0)
    if DECOUPLED:
        old -= (lr.to(tl.float32) * DECAY) * old
    else:
        gradient += DECAY * old
    first = BETA1 * tl.load(moments1 + at, mask=mask, other=0.0) + (1.0 - BETA1) * gradient
    second = BETA2 * tl.load(moments2 + at, mask=mask, other=0.0) + (1.0 - BETA2) * (gradient * gradient)
    tl.store(moments1 + at, first, mask=mask)
    tl.store(moments2 + at, second, mask=mask)
    tl.store(parameters + at, old - size * first / (tl.sqrt(second) / root + EPSILON), mask=mask)


@triton.jit(do_not_specialize=["slots", "advance"])  # or another value would mean compiling while capturing
def finish(
    partials1, partials2, partials3, losses, gradients, loss, ring, state,
    parameters, moments1, moments2, updates, rate, times, slots, advance,
    ROWS1: tl.constexpr, ROWS2: tl.constexpr, ROWS3: tl.constexpr,
    WIDTH1: tl.constexpr, WIDTH2: tl.constexpr, WIDTH3: tl.constexpr, BETWEEN: tl.constexpr, NUMBERS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK_UPDATE: tl.constexpr, UPDATE: tl.constexpr,
    TIMED: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
    EPSILON: tl.constexpr, DECAY: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Sum up all partial gradients and the loss; then the step is over: ring[state[1] % slots] = loss, state moves on.

    `gradients` receives the two convolutions' (widths 1 and 2), has BETWEEN numbers already (fc1.weight), and receives
    the rest (width 3). The loss is the sum of `losses` over NUMBERS. With UPDATE every program then updates its
    parameters, and further programs those between. TIMED: the end of the last program, which has as much to do as any,
    goes into `times`. Grid: (1 + blocks of width 1 + blocks of width 2 + blocks of width 3
    and, with UPDATE, + update blocks of BETWEEN,).
    """
    program = tl.program_id(0)
    BLOCKS1: tl.constexpr = (WIDTH1 + BLOCK_WIDTH - 1) // BLOCK_WIDTH
    BLOCKS2: tl.constexpr = (WIDTH2 + BLOCK_WIDTH - 1) // BLOCK_WIDTH
    BLOCKS3: tl.constexpr = (WIDTH3 + BLOCK_WIDTH - 1) // BLOCK_WIDTH
    if program == 0:
        squares = tl.zeros((BLOCK_ROWS,), tl.float32)
        for first in tl.range(0, ROWS3, BLOCK_ROWS):
            row = first + tl.arange(0, BLOCK_ROWS)
            squares += tl.load(losses + row, mask=row < ROWS3, other=0.0)
        mean = tl.sum(squares, axis=0) / NUMBERS
        tl.store(loss, mean)
        # Read and changed in one go: by one thread, while the others of the program wait for what it read.
        slot = tl.atomic_add(state + 1, 1) % slots
        tl.store(ring + slot, mean)
        tl.atomic_add(state, advance)
    elif program <= BLOCKS1 + BLOCKS2 + BLOCKS3:
        block = program - 1
        if block < BLOCKS1:
            column = block * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
            total = _added_up(partials1, column, ROWS1, WIDTH1, BLOCK_ROWS, BLOCK_WIDTH)
            mask = column < WIDTH1
        elif block < BLOCKS1 + BLOCKS2:
            column = (block - BLOCKS1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
            total = _added_up(partials2, column, ROWS2, WIDTH2, BLOCK_ROWS, BLOCK_WIDTH)
            mask = column < WIDTH2
            column += WIDTH1
        else:
            column = (block - BLOCKS1 - BLOCKS2) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
            total = _added_up(partials3, column, ROWS3, WIDTH3, BLOCK_ROWS, BLOCK_WIDTH)
            mask = column < WIDTH3
            column += WIDTH1 + WIDTH2 + BETWEEN
        tl.store(gradients + column, total, mask=mask)
        if UPDATE:
            _adam(
                parameters, moments1, moments2, updates, rate, total, column, mask,
                LOG_BETA1, LOG_BETA2, BETA1, BETA2, EPSILON, DECAY, DECOUPLED,
            )  # fmt: skip
    elif UPDATE:
        between = (program - 1 - BLOCKS1 - BLOCKS2 - BLOCKS3) * BLOCK_UPDATE + tl.arange(0, BLOCK_UPDATE)
        inside = between < BETWEEN
        between += WIDTH1 + WIDTH2
        gradient = tl.load(gradients + between, mask=inside, other=0.0)
        _adam(
            parameters, moments1, moments2, updates, rate, gradient, between, inside,
            LOG_BETA1, LOG_BETA2, BETA1, BETA2, EPSILON, DECAY, DECOUPLED,
        )  # fmt: skip
    if TIMED:
        if program == tl.num_programs(0) - 1:
            tl.debug_barrier()
            tl.store(times + slots + tl.load(times + 2 * slots), globaltimer())


@triton.jit(do_not_specialize=["place"])
def note(times, place):
    """times[place] = now. Grid: (1,)."""
    tl.store(times + place, globaltimer())


@triton.jit
def update(
    parameters, gradients, moments1, moments2, updates, rate,
    COUNT: tl.constexpr, BLOCK_UPDATE: tl.constexpr,
    LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
    EPSILON: tl.constexpr, DECAY: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Update all COUNT parameters from `gradients`, where these were averaged meanwhile. Grid: (blocks,)."""
    at = tl.program_id(0) * BLOCK_UPDATE + tl.arange(0, BLOCK_UPDATE)
    mask = at < COUNT
    gradient = tl.load(gradients + at, mask=mask, other=0.0)
    _adam(
        parameters, moments1, moments2, updates, rate, gradient, at, mask,
        LOG_BETA1, LOG_BETA2, BETA1, BETA2, EPSILON, DECAY, DECOUPLED,
    )  # fmt: skip
