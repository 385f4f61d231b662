"""Update rules and arithmetic: what they are, and what cannot work here and says so."""

import copy
import subprocess
import sys

import pytest
import torch
from make.wording import Golden

from horovod_study.comm.base import SerialBackend
from horovod_study.comm.launch import Launch
from horovod_study.errors import ConfigError
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import (
    Arithmetic,
    accelerate,
    learning_rate,
    make_optimizer,
    replayed_on_host,
    set_learning_rate,
)
from horovod_study.strain.options import StrainConfig

CPU = torch.device("cpu")
ALONE = Launch(rank=0, workers=1, launcher="none", backend="serial")


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({}, torch.optim.Adam, "Adam, fused"),
        ({"fused_optimizer": False}, torch.optim.Adam, "Adam"),
        ({"optimizer": "adamw", "weight_decay": 0.01}, torch.optim.AdamW, "AdamW, fused, weight decay 0.01"),
        ({"epsilon": 1e-5}, torch.optim.Adam, "Adam, fused, epsilon 1e-05"),
        ({"optimizer": "sgd"}, torch.optim.SGD, "SGD, fused"),
    ],
)
def test_the_optimiser_is_the_one_asked_for(
    values: dict[str, object], kind: type[torch.optim.Optimizer], text: str
) -> None:
    config = StrainConfig(lr=1e-3, lr_scaling="linear", **values)  # type: ignore[arg-type]
    optimizer, description = make_optimizer(config, StressCNN().parameters(), workers=4)

    assert (type(optimizer).__name__, description) == (kind.__name__, text)
    assert isinstance(optimizer, kind)
    group = optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(4e-3)
    assert group["weight_decay"] == config.weight_decay and group["fused"] is config.fused_optimizer
    assert group.get("eps") == (None if config.optimizer == "sgd" else config.epsilon)


LEAN = """
import copy, sys, torch
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.optimizer import make_optimizer

kinds = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
}

def updated(model, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 5), 0.1 * step)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not any(parameter.grad_fn for parameter in model.parameters())
    return [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]

pairs = []
for name, (kind, extra) in kinds.items():
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    twin = copy.deepcopy(model)
    config = StrainConfig(optimizer=name, lr=1e-2, weight_decay=0.1)
    pairs.append((updated(model, make_optimizer(config, model.parameters(), workers=1)[0]), kind, extra, twin))
assert "torch._dynamo" not in sys.modules
for ours, kind, extra, twin in pairs:
    theirs = updated(twin, kind(twin.parameters(), lr=1e-2, weight_decay=0.1, fused=True, **extra))
    assert len(ours) == len(theirs) > 2 and all(map(torch.equal, ours, theirs)), kind
assert "torch._dynamo" in sys.modules, "torch no longer loads its compiler by itself: make_optimizer can be plainer"
"""


@pytest.mark.slow
def test_updates_are_those_of_torch_without_its_compiler() -> None:
    """The same parameters and state to the last bit, in a process that has not loaded torch._dynamo."""
    done = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"precision": "fp16"},
            "fp16.*GPU.*CPU.*fp32",
        ),
        ({"precision": "tf32"}, "tf32.*GPU.*TF32.*NVIDIA GPUs"),
        ({"cuda_graphs": True}, "cuda_graphs.*GPU"),
    ],
)
def test_what_cannot_work_on_a_cpu_says_so(values: dict[str, object], message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message):
        Arithmetic(StrainConfig(**values), CPU)  # type: ignore[arg-type]


def test_compile_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = StrainConfig(compile=True)

    with golden.raises(ConfigError, match="PATH"):
        accelerate(StressCNN(), config, CPU)


def test_bf16_computes_in_bf16_and_keeps_parameters_in_float32() -> None:
    config = StrainConfig(precision="bf16")
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
    config = StrainConfig()
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


@pytest.mark.parametrize("graphs", [False, True])
def test_the_rate_is_read_and_changed_alike_with_graphs_and_without(graphs: bool) -> None:
    optimizer, _ = make_optimizer(StrainConfig(lr=1 / 3, cuda_graphs=graphs), StressCNN().parameters(), workers=1)
    held = optimizer.param_groups[0]["lr"]
    assert learning_rate(optimizer) == 1 / 3
    set_learning_rate(optimizer, 1 / 7)

    assert learning_rate(optimizer) == 1 / 7
    assert isinstance(held, torch.Tensor) is graphs
    if graphs:
        assert optimizer.param_groups[0]["lr"] is held and held.shape == () and held.item() == 1 / 7
        held.fill_(0)
        set_learning_rate(optimizer, 1 / 7)
        assert held.item() == 0, "a rate that has not changed is not written"


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize(("saved_with", "loaded_with"), [(True, False), (False, True), (True, True)])
def test_the_optimisers_state_is_saved_and_loaded_with_graphs_or_without(
    kind: str, saved_with: bool, loaded_with: bool
) -> None:
    """A checkpoint knows nothing of graphs; whoever loads it keeps the flags and the place of the rate."""

    def made(graphs: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 1)
        return model, make_optimizer(
            StrainConfig(optimizer=kind, lr=0.1, cuda_graphs=graphs), model.parameters(), workers=1
        )[0]

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model, optimizer = made(saved_with)
    if saved_with and kind != "sgd":
        optimizer.param_groups[0]["capturable"] = True  # as on a GPU
    step(model, optimizer)
    set_learning_rate(optimizer, 0.3)
    state, weights = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    other_model, other = made(loaded_with)
    rate, flags = other.param_groups[0]["lr"], {**other.param_groups[0]}
    other_model.load_state_dict(weights)
    other.load_state_dict(state)

    group = state["param_groups"][0]
    assert group["lr"] == 0.3 and type(group["lr"]) is float and not group.get("capturable")
    assert learning_rate(other) == 0.3
    assert {name: other.param_groups[0][name] for name in ("fused", "weight_decay")} == {
        name: flags[name] for name in ("fused", "weight_decay")
    }
    if loaded_with:
        assert other.param_groups[0]["lr"] is rate and rate.item() == 0.3
    step(model, optimizer)
    step(other_model, other)
    assert torch.equal(model.weight, other_model.weight)


def test_updates_that_no_graph_can_hold_are_refused() -> None:
    for values, message in (
        ({"optimizer": "sgd"}, r"run: cuda_graphs with optimizer sgd needs the fused update: .* reads its rate on the"),
        (
            {"precision": "fp16"},
            r"cuda_graphs with precision fp16 needs the fused .* whether gradients overflowed, whi",
        ),
    ):
        config = StrainConfig(cuda_graphs=True, fused_optimizer=False, **values)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message + r".*; leave fused_optimizer on, or leave cuda_graphs out"):
            make_optimizer(config, StressCNN().parameters(), workers=1)


def test_captured_steps_run_on_a_cpu_only_where_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    config = StrainConfig(cuda_graphs=True)
    for value in ("", "0", "yes"):
        monkeypatch.setenv("HOROVOD_STUDY_REPLAY_ON_HOST", value)
        assert not replayed_on_host()
        with pytest.raises(ConfigError, match="cuda_graphs needs a GPU"):
            Arithmetic(config, CPU)
    monkeypatch.setenv("HOROVOD_STUDY_REPLAY_ON_HOST", "1")
    assert replayed_on_host()
    Arithmetic(config, CPU)
