"""Calls at which the host waits for the device."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from make.scratch_job import job
from make.wording import Golden
from torch import nn

from horovod_study.comm.base import FlatGradients
from horovod_study.measure.clock import LapClock
from horovod_study.strain.profiling import Finder, SyncPoint
from horovod_study.strain.scratch import Scratch

CPU = torch.device("cpu")
HERE = Path(__file__).name


def found(scratch: Scratch, steps: int = 3) -> list[SyncPoint]:
    clock, finder = LapClock(), Finder()
    clock.start()
    scratch.steps(1, clock)
    with finder.watching(CPU):
        scratch.steps(steps, clock)
    return finder.points()


def line_of(text: str) -> int:
    """Return the line of this file that holds `text`, this one's own call excepted."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_of" not in line)


def test_the_own_step_waits_nowhere() -> None:
    assert found(job()) == []


def test_the_own_step_with_a_fused_optimiser_waits_nowhere() -> None:
    fused: Callable[..., torch.optim.Optimizer] = lambda *a, **b: torch.optim.Adam(*a, fused=True, **b)  # noqa: E731
    assert found(job(optimizer=fused)) == []


def test_packing_gradients_into_a_flat_buffer_waits_nowhere() -> None:
    network = nn.Linear(3, 2)
    flat = FlatGradients(network.parameters(), workers=2)
    finder = Finder()
    with finder.watching(CPU):
        network(torch.ones(4, 3)).sum().backward()
        flat.pack()
    assert flat.norm2 is not None
    assert finder.points() == []


def test_an_injected_item_is_found_with_its_line(golden: Golden) -> None:
    def forward() -> None:
        torch.ones(()).item()  # the injected one

    points = found(job(forward=forward), steps=4)
    assert [(each.operation, Path(each.file).name, each.line, each.number) for each in points] == [
        ("item", HERE, line_of("# the injected one"), 4)
    ]
    golden(points[0].source, "torch.ones")
    assert points[0].function.endswith("test_an_injected_item_is_found_with_its_line.<locals>.forward")


def test_a_call_in_a_hook_of_backward_is_found() -> None:
    def backward(_: Any) -> None:
        float(torch.ones(()))  # in a hook

    assert [(each.operation, each.line) for each in found(job(backward=backward))] == [
        ("item", line_of("float(torch.ones(()))  # in a hook"))
    ]


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: x[0].item(), "item"),
        (lambda x: bool(x[0] > 0), "item"),
        (lambda x: int(x.argmax()), "item"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "cpu"),
        (lambda x: x[x > 0], "indexing by a mask"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.where(x > 0), "nonzero"),
        (lambda x: torch.masked_select(x, x > 0), "masked_select"),
        (lambda x: torch.unique(x), "unique"),
        (lambda x: torch.equal(x, x), "equal"),
    ],
)
def test_what_would_wait_on_a_gpu(call: Callable[[torch.Tensor], Any], operation: str) -> None:
    finder = Finder()
    x = torch.tensor([1.0, -2.0, 3.0])
    with finder.watching(CPU):
        call(x)
    assert [(each.operation, Path(each.file).name) for each in finder.points()] == [(operation, HERE)]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[1:],
        lambda x: x[torch.tensor([0, 2])],
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.numpy(),
        lambda x: x.to("cpu", torch.float64),
        lambda x: x.masked_fill(x > 0, 1.0),
    ],
)
def test_what_would_not_wait(call: Callable[[torch.Tensor], Any]) -> None:
    finder = Finder()
    with finder.watching(CPU):
        call(torch.tensor([1.0, -2.0, 3.0]))
    assert finder.points() == []


def test_step_counts_of_an_optimiser_are_on_the_host_anyway() -> None:
    one_by_one: Callable[..., torch.optim.Optimizer] = lambda *a, **b: torch.optim.Adam(*a, foreach=False, **b)  # noqa: E731
    assert found(job(optimizer=one_by_one)) == []


def test_the_most_frequent_comes_first() -> None:
    finder = Finder()
    with finder.watching(CPU):
        for _ in range(2):
            torch.ones(()).item()
        torch.ones(2).nonzero()
    assert [(each.operation, each.number) for each in finder.points()] == [("item", 2), ("nonzero", 1)]


def test_warnings_of_cuda_are_attributed_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch does on a GPU, played: it warns, from a file of its own, as often as the call is made."""
    modes: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    program = "def call(warn):\n    warn('called a synchronizing CUDA operation (Triggered internally)')\n"
    inside: dict[str, Any] = {}
    exec(compile(program, f"{Path(torch.__file__).parent}/somewhere.py", "exec"), inside)

    finder = Finder()
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with finder.watching(torch.device("cuda")):
            for _ in range(3):
                inside["call"](warnings.warn)  # as the user
            warnings.warn("another", stacklevel=1)
    assert modes == ["warn", 0]
    assert [(each.operation, each.line, each.number) for each in finder.points()] == [
        ("CUDA call", line_of("# as the user"), 3)
    ]
    assert [str(each.message) for each in others] == ["another"]
