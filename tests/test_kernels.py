"""The network's own GPU kernels: in Triton's interpreter against PyTorch in double precision, and compiled."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from fused_steps import Case, Outcome, compile_all, make_steps, model_of, optimizer_of
from make.benchmarks import load_benchmark
from make.wording import Golden
from torch import nn

from horovod_study.errors import ConfigError
from horovod_study.strain import kernels, material
from horovod_study.strain.kernels import BlockSizes, FusedNetwork, ProductBlocks, Sizes
from horovod_study.strain.model import WIDTHS, StressCNN

pytestmark = pytest.mark.slow

needs_triton = pytest.mark.skipif(
    "cannot be imported" in kernels.why_not(), reason="Triton is not installed; make extras installs it"
)
SMALL = (5, 7, 11)


def in_a_process(environment: dict[str, str | None]) -> Iterator[Callable[..., Any]]:
    """A process of its own with these variables; call(function, ...) calls there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield lambda function, *arguments: pool.submit(function, *arguments).result()


@pytest.fixture(scope="module")
def interpret() -> Iterator[Callable[[Case], Outcome]]:
    for call in in_a_process({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}):
        yield partial(call, make_steps)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Any]]]:
    cache = str(tmp_path_factory.mktemp("triton"))
    for call in in_a_process({"TRITON_INTERPRET": None, "TRITON_CACHE_DIR": cache}):
        yield partial(call, compile_all)


def case_of(batch: int, widths: tuple[int, int, int] = SMALL, *, steps: int = 1, **options: Any) -> Case:
    """A network with its first parameters, generated curves (padded ones among them), and batches in any order."""
    torch.manual_seed(batch)
    model = StressCNN(widths=widths)
    curves, targets = material.generate(7, 0, steps * batch + 5)
    order = np.random.default_rng(batch).permutation(len(curves))[: steps * batch].reshape(steps, batch)
    return Case(
        widths=widths,
        parameters={name: values.numpy() for name, values in model.state_dict().items()},
        curves=curves,
        targets=targets,
        order=order,
        **options,
    )


def in_pytorch(case: Case, step: int, *, dtype: torch.dtype = torch.float64, autocast: bool = False) -> Outcome:
    """The same step by PyTorch on the CPU."""
    model = model_of(case).to(dtype)
    curves, targets = (torch.from_numpy(each[case.order[step]]).to(dtype) for each in (case.curves, case.targets))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(curves)
    loss = nn.functional.mse_loss(out.to(dtype), targets)
    (loss * case.share).backward()
    gradients = {name: each.grad.numpy() for name, each in model.named_parameters()}
    return Outcome(losses=[loss.item()], gradients=[gradients], ring=[], state=[], moved=[])


def errors(found: Outcome, right: Outcome, step: int = 0) -> dict[str, float]:
    """The relative error of the loss and of each gradient: the length of the difference over that of the right one."""
    relative = {
        name: float(np.linalg.norm(found.gradients[step][name] - gradient) / (np.linalg.norm(gradient) or 1))
        for name, gradient in right.gradients[0].items()
    }
    return {"loss": abs(found.losses[step] / right.losses[0] - 1), **relative}


# Against PyTorch

block_variants = load_benchmark("block_variants").block_variants
ROOMY = BlockSizes(
    filters=(16, 16, 16, 16),
    terms=(16, 16),
    cells=(1024, 512),
    weight_positions=512,
    weight_chunks=3,
    first_cells=512,
    first_taps=16,
    first_chunks=4,
    samples=8,
    weight_terms=128,
    fc1=ProductBlocks(rows=64, columns=256, terms=256, parts=2),
    fc1_input=ProductBlocks(rows=64, columns=512, terms=256),
    fc1_weight=ProductBlocks(rows=256, columns=512, terms=64),
)
"""Few programs, which is what an interpreter takes its time for."""


@needs_triton
@pytest.mark.parametrize(
    ("batch", "widths", "options"),
    [
        (1, SMALL, {}),
        (3, SMALL, {"scaling": "fixed", "share": 0.25}),
        (8, SMALL, {"scaling": "standard", "blocks": ROOMY}),
        (2, (17, 16, 33), {"scaling": "fixed"}),
        (3, (1, 1, 1), {"scaling": "standard"}),
        (3, WIDTHS, {"scaling": "fixed", "blocks": ROOMY}),
        pytest.param(75, WIDTHS, {"scaling": "standard", "blocks": ROOMY}, marks=pytest.mark.slow),
    ],
)
def test_loss_and_gradients_are_pytorchs(interpret, batch: int, widths: tuple[int, int, int], options: dict[str, Any]):
    case = case_of(batch, widths, **options)

    assert (case.curves[case.order[0]][:, 2] == 0).any() or batch < 8, "none of the curves is padded"
    found = interpret(case)

    assert max(errors(found, in_pytorch(case, 0)).values()) < 2e-6, errors(found, in_pytorch(case, 0))


@needs_triton
def test_bf16_is_as_exact_as_pytorchs(interpret):
    case = case_of(8, scaling="fixed", precision="bf16")
    exact = in_pytorch(case, 0)
    ours = errors(interpret(case), exact)
    theirs = errors(in_pytorch(case, 0, dtype=torch.float32, autocast=True), exact)

    assert max(ours.values()) < 2 * max(theirs.values()), (ours, theirs)
    assert max(ours.values()) > 1e-4, "nothing was rounded to bfloat16"


@needs_triton
def test_blocks_change_nothing_but_rounding(interpret):
    case = case_of(2, (5, 17, 11), scaling="fixed")
    variants = block_variants(Sizes.of(model_of(case), 2))
    right = in_pytorch(case, 0)

    assert len(variants) >= 8
    for name, blocks in variants.items():
        assert max(errors(interpret(replace(case, blocks=blocks)), right).values()) < 2e-6, name


def small_integers(case: Case) -> Case:
    """The case with such numbers that the largest of three is often there twice, and zeros come before ReLU.

    A filter of the convolutions looks at one point of its window, so that equal values have unequal windows: which of
    them wins shows in the gradient. Float32 knows all of it exactly.
    """
    random = np.random.default_rng(5)
    parameters = {name: random.integers(-1, 2, values.shape).astype("f4") for name, values in case.parameters.items()}
    for name in ("conv1.weight", "conv2.weight"):
        parameters[name][..., 1:] = 0
        parameters[name.replace("weight", "bias")][:] = 0
    parameters["fc1.weight"][3] = parameters["fc1.bias"][3] = 0
    return replace(case, parameters=parameters, curves=random.integers(-2, 3, case.curves.shape).astype("f4"))


@needs_triton
def test_the_first_of_equal_values_wins_and_zero_is_cut(interpret):
    case = small_integers(case_of(3))
    right = in_pytorch(case, 0)
    model = model_of(case)
    with torch.no_grad():
        before = model.conv1(torch.from_numpy(case.curves)[:, :, None, :])[:, :, 0, :195].unflatten(2, (65, 3))
    largest, _ = before.max(dim=3, keepdim=True)

    assert ((before == largest).sum(dim=3)[largest[..., 0] > 0] > 1).float().mean() > 0.1, "too few equal values"
    assert (largest == 0).float().mean() > 0.05, "too few zeros"
    assert right.gradients[0]["fc1.bias"][3] == 0 and case.parameters["fc2.weight"][:, 3].any()
    found = interpret(case)
    assert max(errors(found, right).values()) < 2e-6, errors(found, right)


@needs_triton
@pytest.mark.parametrize("where", [0, 1, 2, 100])
def test_a_nan_reaches_the_loss_and_every_gradient_that_it_reaches_in_pytorch(interpret, where: int):
    case = case_of(3)
    case.curves[case.order[0][1], 1, where] = np.nan
    right = in_pytorch(case, 0)
    found = interpret(case)

    assert np.isnan(right.losses[0]) and np.isnan(found.losses[0]) and np.isnan(found.ring[0])
    for name, gradient in right.gradients[0].items():
        assert np.isnan(gradient).any(), name
        assert np.isnan(found.gradients[0][name][np.isnan(gradient)]).all(), name


# The course of steps


@needs_triton
def test_steps_follow_the_state_and_leave_their_losses_in_the_ring(interpret):
    """Five steps through an order of seven from its third on, in a ring of four that is at place 9."""
    case = case_of(2, steps=7, state=(2, 9), slots=4)
    found = interpret(replace(case, steps=5))
    right = [in_pytorch(case, step) for step in range(2, 7)]

    for step, one in enumerate(right):
        assert max(errors(found, one, step).values()) < 2e-6, step
    losses = [one.losses[0] for one in right]
    assert found.state == [7, 14]
    assert found.ring == pytest.approx([losses[3], losses[4], losses[1], losses[2]], rel=1e-6)


@needs_triton
def test_a_streamed_batch_is_the_resident_one(interpret):
    resident = case_of(5, steps=2, state=(1, 0))
    streamed = replace(
        resident,
        curves=resident.curves[resident.order[1]],
        targets=resident.targets[resident.order[1]],
        order=np.arange(5)[None],
        state=(0, 0),
        advance=0,
        steps=2,
    )
    found, again = interpret(resident), interpret(streamed)

    assert again.state == [0, 2]
    assert again.losses == [found.losses[0]] * 2
    for name, gradient in found.gradients[0].items():
        assert (again.gradients[0][name] == gradient).all() and (again.gradients[1][name] == gradient).all(), name


@needs_triton
def test_a_step_gives_the_same_bits_again_in_the_same_memory(interpret):
    found = interpret(replace(case_of(3, advance=0), steps=3))

    assert found.moved == []
    assert len(set(found.losses)) == 1
    for name, gradient in found.gradients[0].items():
        assert (found.gradients[1][name] == gradient).all() and (found.gradients[2][name] == gradient).all(), name


@needs_triton
@pytest.mark.parametrize(("merged", "networks"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.3}, {"weight_decay": 0.3, "decoupled": True, "betas": (0.8, 0.95), "eps": 1e-3}]
)
def test_the_update_is_torchs(interpret, merged: bool, networks: int, options: dict[str, Any]):
    adam = {"lr": 3e-3, **options}
    found = interpret(case := case_of(3, steps=3, adam=adam, merged=merged, networks=networks))
    model = model_of(case)
    optimizer = optimizer_of(model, adam)
    for gradients in found.gradients:
        for name, each in model.named_parameters():
            each.grad = torch.from_numpy(gradients[name])
        optimizer.step()

    assert found.moved == []
    for name, each in model.named_parameters():
        assert np.abs(each.detach().numpy() - case.parameters[name]).max() > 1e-3, "nothing was learnt"
        np.testing.assert_allclose(found.parameters[name], each.detach().numpy(), rtol=2e-6, atol=1e-8, err_msg=name)
    for number, each in enumerate(model.parameters()):
        for name, value in optimizer.state[each].items():
            np.testing.assert_allclose(found.optimizer[name][number], value.numpy(), rtol=2e-6, atol=1e-12)


# What is refused


def test_without_triton_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.setitem(sys.modules, "triton", None)
    model = StressCNN(widths=SMALL)

    assert "the extra `kernels`" in kernels.why_not()
    with golden.raises(ConfigError):
        FusedNetwork(model, batch=3, precision="fp32", buffer=torch.empty(10))


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cpu_is_refused_where_nothing_is_interpreted(monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    with golden.raises(ConfigError, match="PyTorch.*GPU"):
        FusedNetwork(StressCNN(), batch=3, precision="fp32", buffer=torch.empty(10))


@needs_triton
def test_fp16_and_wrong_arrays_are_refused(interpret, golden):
    case = case_of(3)

    with golden.raises(ConfigError, match="fp32.*tf32.*bf16.*fp16"):
        interpret(replace(case, precision="fp16"))
    with golden.raises(ValueError, match=r"201.*torch\.float64"):
        interpret(replace(case, curves=case.curves.astype("f8")))
    with golden.raises(ValueError, match=r"torch\.float32"):
        interpret(replace(case, targets=case.curves[:, :, 0]))


def test_a_batch_beyond_32_bits_is_refused(golden):
    with golden.raises(ConfigError, match="32 bits.*batch 1000000"):
        Sizes.of(StressCNN(), 1_000_000)


# Compiled


SHARED = {80: 163, 90: 227, 100: 227}
"""Kibibytes of shared memory that a program may have, by compute capability (CUDA C++ Programming Guide, technical
specifications)."""


@needs_triton
@pytest.mark.parametrize(
    ("capability", "batch", "precision"),
    [
        (90, 75, "fp32"),
        (90, 75, "tf32"),
        (90, 75, "bf16"),
        (90, 1024, "fp32"),
        (90, 1024, "bf16"),
        (80, 1024, "tf32"),
        (100, 75, "bf16"),
    ],
)
def test_kernels_compile_without_spilling(compiled, capability: int, batch: int, precision: str):
    """For GPUs that are not here; at the batch that a launch limits, and at the one that arithmetic does."""
    sizes = Sizes.of(StressCNN(), batch)

    for kernel in compiled(sizes, None, precision, capability):
        assert kernel.local == 0 and kernel.stack <= 8, kernel
        assert kernel.shared <= SHARED[capability] * 1024 / 2, f"fewer than two programs share a processor: {kernel}"
        products = precision != "fp32" and kernel.name not in ("head", "finish", "update")
        assert (kernel.matrix > 0) == products, f"the matrix units make all products but those of fp32: {kernel}"


@needs_triton
def test_the_largest_variants_of_the_blocks_fit(compiled):
    sizes = Sizes.of(StressCNN(), 1024)

    variants = block_variants(sizes)

    for name in ("4 stages", "twice the cells", "32 terms"):
        for kernel in compiled(sizes, variants[name], "tf32", 90):
            assert kernel.shared <= SHARED[90] * 1024, (name, kernel)


# Sizes of launches


@pytest.mark.parametrize("batch", [1, 3, 75, 256, 1024, 16_384])
def test_blocks_keep_a_gpu_busy_without_more_partial_sums_than_needed(batch: int):
    sizes = Sizes.of(StressCNN(), batch)
    blocks = BlockSizes.fitting(sizes)
    programs = [kernels.blocks(batch * 65, blocks.cells[0]), kernels.blocks(batch * 20, blocks.cells[1]) * 3]

    if batch >= 75:
        assert min(programs) >= kernels.PROGRAMS
    assert blocks.first_chunks <= 4 * kernels.PROGRAMS and blocks.weight_chunks * 9 <= 6 * kernels.PROGRAMS + 8
    assert blocks.first_chunks <= -(-batch * 65 // blocks.first_cells)
    assert blocks.samples * 256 <= 4096
