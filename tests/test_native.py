"""The native training step against PyTorch in double precision, and where it cannot be used.

`make setup` builds it; where there is no compiler these tests are skipped, which in CI is a failure.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from make.wording import Golden
from torch import nn

from horovod_study import train
from horovod_study.comm.base import FlatGradients, SerialBackend
from horovod_study.comm.launch import detect
from horovod_study.errors import ConfigError
from horovod_study.records import read_run
from horovod_study.strain import material, native
from horovod_study.strain.model import INPUT_SCALINGS, WIDTHS, StressCNN
from horovod_study.strain.optimizer import Arithmetic, make_optimizer
from horovod_study.strain.options import StrainConfig

USABLE, WHY_NOT = native.usable()
needs_native = pytest.mark.skipif(not USABLE, reason=f"no native step: {WHY_NOT}")
instructions = pytest.mark.parametrize("instructions", USABLE)
CPU = torch.device("cpu")


def job(widths: tuple[int, int, int] = WIDTHS, *, batch: int = 3, instructions: str = "", **options: Any) -> Any:
    """Model, its native step and optimiser, alone."""
    config = StrainConfig(
        kernels="native", batch=batch, widths="-".join(map(str, widths)), device="cpu", steps=1, **options
    )
    torch.manual_seed(batch)
    model = StressCNN(widths=widths, input_scaling=config.input_scaling)
    optimizer, _ = make_optimizer(config, model.parameters(), workers=1)
    backend = SerialBackend(config, detect({}))
    step = native.NativeStep(model, optimizer, backend, batch=batch, instructions=instructions or USABLE[0])
    return model, step, optimizer


def curves_of(batch: int, seed: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    curves, targets = material.generate(seed, 0, batch)
    return torch.from_numpy(curves), torch.from_numpy(targets)


def exact(model: StressCNN, curves: torch.Tensor, targets: torch.Tensor, dtype: Any = torch.float64) -> Any:
    """Loss and gradients by PyTorch."""
    twin = copy.deepcopy(model).to(dtype)
    twin.zero_grad()
    loss = nn.functional.mse_loss(twin(curves.to(dtype)), targets.to(dtype))
    loss.backward()
    return loss.item(), [each.grad for each in twin.parameters()]


def errors(model: StressCNN, right: list[torch.Tensor]) -> list[float]:
    """Of each gradient: the length of the difference over that of the right one."""
    found = [each.grad for each in model.parameters()]
    return [
        float((mine.double() - theirs).norm() / (theirs.norm() or 1)) for mine, theirs in zip(found, right, strict=True)
    ]


@needs_native
@instructions
@pytest.mark.parametrize("scaling", ["none", "fixed", "standard"])
@pytest.mark.parametrize(
    ("batch", "widths"),
    [(1, (1, 1, 1)), (75, WIDTHS), (16, (8, 9, 4)), (17, (5, 7, 11)), (83, (16, 33, 65)), (200, (3, 2, 30))],
)
def test_loss_and_gradients_are_pytorchs(instructions: str, scaling: str, batch: int, widths: Any) -> None:
    model, step, _ = job(widths, batch=batch, instructions=instructions, input_scaling=scaling)
    offset, scale = (torch.tensor(each)[:, None] for each in INPUT_SCALINGS[scaling])
    # Not generated curves: theirs are so smooth that a pooling may have another winner in double precision.
    curves, targets = torch.randn(batch, 3, 201) * scale + offset, torch.rand(batch, 2)

    loss = step.forward(curves, targets)
    step.backward()

    right, gradients = exact(model, curves, targets)
    assert float(loss) == pytest.approx(right, rel=1e-6)
    assert max(errors(model, gradients)) < 1e-5


@needs_native
@instructions
@pytest.mark.parametrize("seed", range(8))
def test_random_networks_and_batches(instructions: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    first, second, hidden, batch = (int(torch.randint(1, high, (), generator=draw)) for high in (24, 40, 90, 150))
    model, step, _ = job((first, second, hidden), batch=batch, instructions=instructions)
    curves = torch.randn(batch, 3, 201, generator=draw)
    targets = torch.randn(batch, 2, generator=draw)

    for weight in (1.0, 0.25):
        loss = step.forward(curves, targets)
        step.backward(weight)

        right, gradients = exact(model, curves, targets)
        assert float(loss) == pytest.approx(right, rel=1e-6)
        assert max(errors(model, [weight * each for each in gradients])) < 1e-5


@needs_native
@instructions
def test_ties_and_dead_units_go_where_pytorch_sends_them(instructions: str) -> None:
    """Whole numbers, so that sums are exact: of equal ones the first wins, and 0 is dead."""
    model, step, _ = job((6, 7, 9), batch=20, instructions=instructions)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=draw))
    curves = torch.randint(-1, 2, (20, 3, 201), generator=draw).float()
    targets = torch.zeros(20, 2)

    step.forward(curves, targets)
    step.backward()

    _, gradients = exact(model, curves, targets)
    assert max(errors(model, gradients)) < 1e-6


@pytest.mark.slow
@needs_native
@instructions
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["curve", "target", "conv1.weight", "conv2.bias", "fc1.weight", "fc2.weight"])
def test_what_is_not_finite_passes_as_in_pytorch(instructions: str, value: float, place: str) -> None:
    model, step, _ = job((6, 7, 9), batch=5, instructions=instructions)
    curves, targets = curves_of(5)
    if place == "curve":
        curves[3, 1, 194] = value  # reaches one pooling of each layer, neither time as its first number
    elif place == "target":
        targets[3, 1] = value
    else:
        with torch.no_grad():
            model.get_parameter(place).view(-1)[2] = value

    loss = float(step.forward(curves, targets))
    step.backward()

    right, gradients = exact(model, curves, targets, torch.float32)
    torch.testing.assert_close(torch.tensor(loss), torch.tensor(right), equal_nan=True)
    for mine, theirs in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(mine.grad.isfinite(), theirs.isfinite())


@needs_native
@instructions
@pytest.mark.parametrize("rule", [{}, {"epsilon": 1e-3}, {"optimizer": "adamw"}, {"optimizer": "sgd"}])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_ten_steps_are_those_of_pytorch_and_go_on_from_each_others_state(
    instructions: str, rule: dict[str, Any], decay: float
) -> None:
    options = {**rule, "weight_decay": decay, "lr": 1e-3, "input_scaling": "standard"}
    model, step, own = job(batch=20, instructions=instructions, **options)
    twin = copy.deepcopy(model)
    theirs, _ = make_optimizer(StrainConfig(steps=1, **options), twin.parameters(), workers=1)

    losses: list[tuple[float, float]] = []
    for number in range(10):
        if number == 5:  # each takes the other's state
            states = copy.deepcopy(own.state_dict()), copy.deepcopy(theirs.state_dict())
            theirs.load_state_dict(states[0])
            own.load_state_dict(states[1])
        curves, targets = curves_of(20, seed=number)
        found = step.forward(curves, targets)
        step.backward()
        step.update()
        theirs.zero_grad()
        right = nn.functional.mse_loss(twin(curves), targets)
        right.backward()
        theirs.step()
        losses.append((found.item(), right.item()))

    found_losses, right_losses = zip(*losses, strict=True)
    assert found_losses == pytest.approx(right_losses, rel=1e-5)
    assert right_losses[-1] != pytest.approx(right_losses[0], rel=0.01), "nothing was learned"
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 1e-5


@needs_native
def test_gradients_land_in_the_flat_buffer_as_shares_and_whole_where_nothing_is_averaged() -> None:
    config = StrainConfig(kernels="native", batch=4, steps=1)
    model = StressCNN()
    backend: Any = SerialBackend(config, detect({}))
    backend.workers, backend.flat = 4, FlatGradients(model.parameters(), workers=4)
    optimizer, _ = make_optimizer(config, model.parameters(), workers=4)
    step = native.NativeStep(model, optimizer, backend, batch=4, instructions=USABLE[0])
    curves, targets = curves_of(4)
    _, gradients = exact(model, curves, targets)

    step.forward(curves, targets)
    step.backward()

    assert backend.flat.pack().data_ptr() == model.conv1.weight.grad.data_ptr()
    assert max(errors(model, [each / 4 for each in gradients])) < 1e-5
    assert float(backend.flat.norm2) == pytest.approx(float(sum((each / 4).square().sum() for each in gradients)))

    backend.flat.silent = True
    step.backward()
    assert max(errors(model, gradients)) < 1e-5


@needs_native
@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 3, 201), torch.zeros(4, 3, 201).double(), torch.zeros(4, 201, 3).transpose(1, 2)]
)
def test_other_batches_are_not_read(batch: torch.Tensor) -> None:
    _, step, _ = job((2, 3, 4), batch=4)
    with pytest.raises(ValueError, match="curves"):
        step.forward(batch, torch.zeros(4, 2))


SMALL = (*("--dataset", "2000", "--batch", "30", "--device", "cpu", "--lr", "1e-3"), "--input-scaling", "standard")


def trained(out: Path, *options: str) -> Any:
    assert train.main([*SMALL, *options, "--out", str(out)]) == 0
    return read_run(out)


@pytest.mark.slow
@needs_native
def test_a_run_trains_as_with_torch_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    torch_run = trained(tmp_path / "torch", "--steps", "10")
    whole = trained(tmp_path / "whole", "--steps", "10", "--kernels", "native")
    trained(tmp_path / "halves", "--steps", "4", "--kernels", "native")
    assert train.main(["--resume", str(tmp_path / "halves"), "--steps", "10"]) == 0
    halves = read_run(tmp_path / "halves")

    assert [each.effective["kernels"] for each in (torch_run, whole)] == ["torch", "native"]
    assert halves.totals["parameter_sha256"] == whole.totals["parameter_sha256"]
    # Ten steps: so far the losses of both are promised to agree, whatever PyTorch's library does on this processor.
    assert whole.totals["train_mse"] == pytest.approx(torch_run.totals["train_mse"], rel=1e-5)


def test_denormal_numbers_are_flushed_where_a_run_trains(tmp_path: Path) -> None:
    small = torch.full((8,), 1e-40)
    assert torch.all(small * 0.999 > 0)

    trained(tmp_path / "run", "--steps", "3")

    assert torch.all(small * 0.999 == 0)  # until conftest.py ends it: a setting of the thread


def test_without_its_library_a_run_says_so_and_computes_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setattr(native, "folder", lambda: tmp_path / "nowhere")
    native.load.cache_clear()

    record = trained(tmp_path / "run", "--steps", "3", "--kernels", "native")

    assert record.effective["kernels"] == "torch"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "native" in line]
    assert "make setup" in line
    golden(line)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"precision": "bf16"}, "precision bf16"),
        ({"device": "cuda"}, "device cuda"),
        ({"compile": True}, "compile"),
        ({"cuda_graphs": True}, "cuda_graphs"),
        ({"fused_optimizer": False}, "not fused"),
        ({"threads": 2}, "threads 2"),
        ({"reduction": "hooks"}, "without autograd"),
    ],
)
def test_what_the_native_step_has_not_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^run: .*kernels native.*{named}|^run: reduction.*{named}"):
        StrainConfig(kernels="native", steps=1, **options)


def test_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernels native"):
        Arithmetic(StrainConfig(kernels="native", steps=1), torch.device("cuda"))
