"""The learning rate: pure functions of the workers and of the step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.errors import ConfigError
from horovod_study.strain.options import StrainConfig, lr_factor, scaled_lr

SCHEDULES = ("constant", "cosine", "step", "one-cycle")


@pytest.mark.parametrize(("rule", "lr"), [("none", 1e-3), ("sqrt", 2e-3), ("linear", 4e-3)])
def test_learning_rate_scaling(rule: str, lr: float) -> None:
    assert scaled_lr(StrainConfig(lr=1e-3, lr_scaling=rule), workers=4) == pytest.approx(lr)


def test_known_values() -> None:
    constant, cosine, step = (StrainConfig(schedule=name) for name in ("constant", "cosine", "step"))

    assert [lr_factor(constant, 5, p) for p in (0, 0.5, 1)] == [1, 1, 1]
    assert [lr_factor(cosine, 5, p) for p in (0, 0.5, 1, 2)] == pytest.approx([1, 0.5, 0, 0])
    assert [lr_factor(step, 5, p) for p in (0, 0.3, 1 / 3, 0.5, 0.7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_one_cycle_is_that_of_torch() -> None:
    steps, lr = 200, 3e-3
    config = StrainConfig(schedule="one-cycle", lr=lr)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, cycle_momentum=False)
    theirs = []
    for _ in range(steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(theirs) < steps:
            reference.step()
    # Torch's last step is at the end of the cycle, and its rise ends one step early.
    rise = 0.3 * steps - 1
    ours = [
        lr
        * lr_factor(config, step, 0.3 * step / rise if step <= rise else 0.3 + 0.7 * (step - rise) / (steps - 1 - rise))
        for step in range(steps)
    ]

    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_the_range_test_rises_exponentially() -> None:
    config = StrainConfig(schedule="range", lr=1e-6, lr_end=1.0, steps=100)

    assert [lr_factor(config, 0, p) for p in (0, 0.5, 1)] == pytest.approx([1, 1e3, 1e6])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "range"}, "lr_end"),
        ({"schedule": "cosine", "lr_end": 1.0}, r"cosine.*lr_end.*1\.0"),
        ({"schedule": "range", "lr_end": 1.0, "seconds": 5}, ""),
    ],
)
def test_range_goes_with_its_end_and_a_budget_of_steps(values: dict[str, object], message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None):
        StrainConfig(**values)  # type: ignore[arg-type]


def test_warm_up_rises_to_one() -> None:
    config = StrainConfig(lr_warmup_steps=4)

    assert [lr_factor(config, step, 0) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@given(
    name=st.sampled_from(SCHEDULES), progress=st.floats(-0.5, 2), step=st.integers(0, 100), warmup=st.integers(0, 50)
)
def test_the_rate_never_exceeds_the_scaled_one(name: str, progress: float, step: int, warmup: int) -> None:
    factor = lr_factor(StrainConfig(schedule=name, lr_warmup_steps=warmup), step, progress)

    assert 0 <= factor <= 1
