"""What tests/test_kernels.py does in processes of their own: steps in Triton's interpreter, and compilation.

Triton decides when it is imported whether it compiles or interprets. Arrays go in and out, so that no process needs to
know the other's libraries.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from horovod_study.workload.kernels import AdamRule, BlockSizes, FusedNetwork, Sizes, plan
from horovod_study.workload.model import StressCNN


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


TYPES = {"order": "*i64", "state": "*i64", "winner": "*i8", "winner1": "*i8", "winner2": "*i8"} | {
    "scale": "fp32", "slots": "i32", "advance": "i32", "times": "*i64",
}  # fmt: skip
ACTIVATIONS = {
    ("convolution1", "out"), ("convolution2", "x"), ("convolution2", "out"), ("fc1", "left"), ("head", "dz"),
    ("fc1_input", "left"), ("fc1_input", "out"), ("fc1_weight", "left"), ("fc1_weight", "right"),
    ("weight_gradient", "gradient"), ("weight_gradient", "x"), ("first_gradient", "gradient"),
}  # fmt: skip
"""The arguments that are bfloat16 where the precision is; all others are float32."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One kernel as it came out of the compiler; bytes."""

    name: str
    registers: int
    local: int
    stack: int
    shared: int


def compile_all(sizes: Sizes, blocks: BlockSizes | None, precision: str, capability: int) -> list[Compiled]:
    """Compile all kernels of a step for a GPU that need not be there, and read what they use of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    chosen = blocks or BlockSizes.fitting(sizes, precision)
    launches = plan(sizes, chosen, precision=precision, scaled=True, rule=AdamRule(decay=0.01), merged=True, timed=True)
    found = []
    for each in fields(launches):
        launch = getattr(launches, each.name)
        names = launch.kernel.arg_names
        floats = {
            name: "*bf16" if (each.name, name) in ACTIVATIONS and precision == "bf16" else "*fp32" for name in names
        }
        signature = floats | TYPES | dict.fromkeys(launch.constants, "constexpr")
        signature = {name: signature[name] for name in names}
        aligned = {
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if signature[name].startswith("*")
        }
        options: dict[str, Any] = {"num_warps": launch.warps, "num_stages": launch.stages}
        compiled = triton.compile(
            ASTSource(launch.kernel, signature, launch.constants, aligned),
            target=GPUTarget("cuda", capability, 32),
            options=options,
        )
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            usage = subprocess.run(
                [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        found.append(
            Compiled(
                name=each.name,
                registers=numbers["REG"],
                local=numbers["LOCAL"],
                stack=numbers["STACK"],
                shared=compiled.metadata.shared,
            )
        )
    return found
