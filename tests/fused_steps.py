"""What tests/test_kernels.py does in processes of their own: steps in Triton's interpreter, and compilation.

Triton decides when it is imported whether it compiles or interprets. Arrays go in and out, so that no process needs to
know the other's libraries.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from make.benchmarks import load_benchmark

from horovod_study.strain.kernels import BlockSizes, FusedNetwork
from horovod_study.strain.model import StressCNN

kernel_counts = load_benchmark("kernel_counts")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and the steps it makes."""

    widths: tuple[int, int, int]
    scaling: str = "none"
    parameters: dict[str, np.ndarray]
    curves: np.ndarray
    targets: np.ndarray
    order: np.ndarray
    precision: str = "fp32"
    share: float = 1.0
    blocks: BlockSizes | None = None
    state: tuple[int, int] = (0, 0)
    advance: int = 1
    slots: int = 4
    steps: int = 1
    adam: dict[str, Any] | None = None
    """Options of the update, for which `merged` says whether `backward` makes it; None: there is none."""
    merged: bool = False
    networks: int = 1
    """How many take turns with the steps, as captured steps of one training do that have other laps."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was there after each step."""

    losses: list[float]
    gradients: list[dict[str, np.ndarray]]
    ring: list[float]
    state: list[int]
    moved: list[str]
    """What lay elsewhere at the end than at the beginning."""
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    optimizer: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """What the network is after the last step, and its optimiser's state, of each parameter in their order."""


def model_of(case: Case) -> StressCNN:
    """Return the case's network."""
    model = StressCNN(widths=case.widths, input_scaling=case.scaling)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in case.parameters.items()})
    return model


def optimizer_of(model: StressCNN, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Return torch's optimiser for `Case.adam`, its rate in a tensor."""
    kind = torch.optim.AdamW if options.get("decoupled") else torch.optim.Adam
    given = {name: value for name, value in options.items() if name not in ("decoupled", "lr")}
    rate = torch.tensor(options["lr"], dtype=torch.float64)
    return kind(model.parameters(), lr=rate, fused=True, **given)


def make_steps(case: Case) -> Outcome:
    """Make the steps with the kernels; every memory they write is NaN before each."""
    torch.set_num_threads(1)
    model = model_of(case)
    buffer = torch.empty(sum(parameter.numel() for parameter in model.parameters()))
    optimizer = None if case.adam is None else optimizer_of(model, case.adam)
    networks = [
        FusedNetwork(
            model,
            batch=case.order.shape[1],
            precision=case.precision,
            buffer=buffer,
            share=case.share,
            blocks=case.blocks,
            optimizer=optimizer,
            merged=case.merged,
        )
        for _ in range(case.networks)
    ]
    for each in networks:
        each.adopt()
    curves, targets, order = (torch.from_numpy(each) for each in (case.curves, case.targets, case.order))
    state, ring = torch.tensor(case.state), torch.full((case.slots,), torch.nan)
    given = {id(each) for each in (curves, targets, order, state, ring)}
    network = networks[-1]
    own = {name: each for name, each in vars(network).items() if torch.is_tensor(each) and id(each) not in given}
    places = {name: each.data_ptr() for name, each in {**own, **dict(model.named_parameters())}.items()}
    read = ("_factor", "_shift", "_updates", "_times", "_rate", "_parameters", "_moments1", "_moments2")
    losses, gradients = [], []
    for step in range(case.steps):
        for name, tensor in own.items():
            if name not in read:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 99)
        taking = networks[step % case.networks]
        loss = taking.forward(curves, targets, order, state)
        taking.backward(ring, state, case.advance)
        if taking.updates and not case.merged:
            taking.update()
        losses.append(loss.item())
        gradients.append({name: each.grad.numpy().copy() for name, each in model.named_parameters()})
    now = {**{name: vars(network)[name] for name in own}, **dict(model.named_parameters())}
    return Outcome(
        losses=losses,
        gradients=gradients,
        ring=ring.tolist(),
        state=state.tolist(),
        moved=[name for name, place in places.items() if now[name].data_ptr() != place],
        parameters={name: each.detach().numpy().copy() for name, each in model.named_parameters()},
        optimizer={}
        if optimizer is None
        else {
            name: [optimizer.state[each][name].numpy().copy() for each in model.parameters()]
            for name in ("exp_avg", "exp_avg_sq", "step")
        },
    )


def compile_all(*given: Any) -> list[Any]:
    """Compile all kernels of a step, as benchmarks/kernel_counts.py does."""
    found: list[Any] = kernel_counts.compile_all(*given)
    return found
