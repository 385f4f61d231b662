"""Update rules and arithmetic: what they are, and what cannot work here and says so."""

import pytest
import torch

from horovod_study.comm.launch import Launch
from horovod_study.comm.serial import SerialBackend
from horovod_study.config import RunConfig
from horovod_study.errors import ConfigError
from horovod_study.workload.model import StressCNN
from horovod_study.workload.optimizer import Arithmetic, accelerate, make_optimizer

CPU = torch.device("cpu")
ALONE = Launch(rank=0, workers=1, launcher="none", backend="serial")


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({}, torch.optim.Adam, "Adam, fused"),
        ({"fused_optimizer": False}, torch.optim.Adam, "Adam"),
        ({"optimizer": "adamw", "weight_decay": 0.01}, torch.optim.AdamW, "AdamW, fused, weight decay 0.01"),
        ({"optimizer": "sgd"}, torch.optim.SGD, "SGD, fused"),
    ],
)
def test_the_optimiser_is_the_one_asked_for(
    values: dict[str, object], kind: type[torch.optim.Optimizer], text: str
) -> None:
    config = RunConfig(lr=1e-3, lr_scaling="linear", **values)  # type: ignore[arg-type]
    optimizer, description = make_optimizer(config, StressCNN().parameters(), workers=4)

    assert (type(optimizer), description) == (kind, text)
    group = optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(4e-3)
    assert group["weight_decay"] == config.weight_decay and group["fused"] is config.fused_optimizer


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"precision": "fp16"},
            r"run: precision fp16 needs a GPU, this run computes on the CPU .*use precision fp32 or",
        ),
        ({"precision": "tf32"}, r"run: precision tf32 needs a GPU, .*TF32 is a mode of NVIDIA GPUs"),
        ({"cuda_graphs": True}, r"run: cuda_graphs needs a GPU, .*leave it out"),
    ],
)
def test_what_cannot_work_on_a_cpu_says_so(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Arithmetic(RunConfig(**values), CPU)  # type: ignore[arg-type]


def test_compile_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = RunConfig(compile=True)

    with pytest.raises(ConfigError, match="compile needs a C\\+\\+ compiler, and no-such-compiler is not on PATH"):
        accelerate(StressCNN(), config, CPU, Arithmetic(config, CPU))


def test_bf16_computes_in_bf16_and_keeps_parameters_in_float32() -> None:
    config = RunConfig(precision="bf16")
    arithmetic, model = Arithmetic(config, CPU), StressCNN()
    optimizer, _ = make_optimizer(config, model.parameters(), workers=1)
    with arithmetic.autocast():
        outputs = model(torch.randn(4, 3, 201))
    arithmetic.backward(outputs.float().square().mean())
    arithmetic.step(optimizer, SerialBackend(config, ALONE))

    assert outputs.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    """The loss scaling of fp16, with torch's scaler for the CPU: the rule is the same."""
    config = RunConfig()
    arithmetic, model = Arithmetic(config, CPU), torch.nn.Linear(2, 1)
    arithmetic.scaler = torch.amp.GradScaler("cpu")
    optimizer, _ = make_optimizer(config, model.parameters(), workers=1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scale = arithmetic.scaler.get_scale()
    arithmetic.backward(model(torch.full((1, 2), 3e38)).sum())
    arithmetic.step(optimizer, SerialBackend(config, ALONE))

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert arithmetic.scaler.get_scale() == scale / 2

    optimizer.zero_grad()
    arithmetic.backward(model(torch.ones(1, 2)).sum())
    arithmetic.step(optimizer, SerialBackend(config, ALONE))
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
