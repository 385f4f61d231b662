"""Training steps that leave no trace."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from make.scratch_job import Time, job
from make.wording import Golden

from horovod_study.errors import BackendError
from horovod_study.measure.clock import LapClock
from horovod_study.strain.scratch import Scratch

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw, fused": partial(torch.optim.AdamW, fused=True),
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "no state": torch.optim.SGD,
}


def made(scratch: Scratch, steps: int) -> None:
    clock = LapClock()
    clock.start()
    scratch.steps(steps, clock)


def content(scratch: Scratch) -> dict[str, Any]:
    """Everything that training goes on from, copied."""
    names = {parameter: name for name, parameter in scratch.bare_model.named_parameters()}
    slots = {
        (names[parameter], name): each.clone() if torch.is_tensor(each) else each
        for parameter, state in scratch.optimizer.state.items()
        for name, each in state.items()
    }
    groups = [{k: v for k, v in group.items() if k != "params"} for group in scratch.optimizer.param_groups]
    model = {name: value.clone() for name, value in scratch.bare_model.state_dict().items()}
    return {"model": model, "slots": slots, "groups": groups, "random": torch.random.get_rng_state()}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


@pytest.mark.parametrize("steps_before", [0, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_model_optimiser_and_random_numbers_are_put_back(name: str, steps_before: int) -> None:
    scratch = job(optimizer=OPTIMIZERS[name])
    made(scratch, steps_before)
    before = content(scratch)
    places = {name: value.data_ptr() for name, value in scratch.bare_model.state_dict().items()}
    fingerprint = scratch.fingerprint()
    with scratch.kept() as told:
        assert told == fingerprint
        made(scratch, 5)
        scratch.optimizer.param_groups[0]["lr"] = 7.0
        torch.rand(3)
        assert not equal(content(scratch)["model"], before["model"])
        assert scratch.fingerprint() != fingerprint
    assert equal(content(scratch), before)
    assert scratch.fingerprint() == fingerprint
    assert places == {name: value.data_ptr() for name, value in scratch.bare_model.state_dict().items()}


def test_loss_scaling_is_put_back() -> None:
    scratch = job()
    scratch.arithmetic.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    made(scratch, 1)
    before, fingerprint = scratch.arithmetic.scaler.state_dict(), scratch.fingerprint()
    with scratch.kept():
        made(scratch, 6)
        assert scratch.arithmetic.scaler.state_dict()["scale"] > before["scale"]
        assert scratch.fingerprint() != fingerprint
        scratch.put_back()
        assert scratch.fingerprint() == fingerprint
        made(scratch, 6)
    assert scratch.arithmetic.scaler.state_dict() == before


def test_training_goes_on_as_if_nothing_had_been() -> None:
    plain, measured = job(), job()
    batches = [next(iter(plain.loader.epoch(epoch))) for epoch in range(6)]
    losses: dict[str, list[float]] = {"plain": [], "measured": []}
    for name, scratch in (("plain", plain), ("measured", measured)):
        for place, (curves, targets) in enumerate(batches):
            if name == "measured" and place == 3:
                with scratch.kept():
                    made(scratch, 4)
            clock = Time().clock()
            clock.start()
            clock.begin()
            loss = scratch.train_step(
                scratch.model, scratch.optimizer, curves, targets, scratch.backend, clock, scratch.arithmetic
            )
            losses[name].append(float(loss))
    assert losses["plain"] == losses["measured"]
    assert plain.fingerprint() == measured.fingerprint()


def test_inside_it_can_be_put_back_at_any_time() -> None:
    scratch = job()
    made(scratch, 2)
    with scratch.kept() as before:
        for _ in range(3):
            made(scratch, 2)
            assert scratch.fingerprint() != before
            scratch.put_back()
            assert scratch.fingerprint() == before


def test_what_is_not_put_back_is_found(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    scratch = job()
    made(scratch, 2)
    monkeypatch.setattr(Scratch, "put_back", lambda self: None)
    with pytest.raises(BackendError) as error, scratch.kept():
        made(scratch, 1)
    golden(str(error.value), "rank 0")


def test_an_optimiser_that_is_not_put_back_is_found_too(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    scratch = job()
    made(scratch, 2)
    forgotten = {id(each): {k: v.clone() for k, v in s.items()} for each, s in scratch.optimizer.state.items()}
    right = Scratch.put_back

    def only_the_model(self: Scratch) -> None:
        right(self)
        for parameter, slots in self.optimizer.state.items():
            slots["exp_avg"].copy_(forgotten[id(parameter)]["exp_avg"] + 1e-6)

    monkeypatch.setattr(Scratch, "put_back", only_the_model)
    with golden.raises(BackendError, match="rank 0"), scratch.kept():
        made(scratch, 1)


def test_ranks_that_differ_before_are_named(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    scratch = job()
    monkeypatch.setattr(scratch.backend, "gather", lambda value: [value, "another"])
    with pytest.raises(BackendError) as error, scratch.kept():
        raise AssertionError("not reached")
    golden(str(error.value), "rank 1", "rank 0")


def test_steps_have_the_laps_of_training_and_batches_go_on() -> None:
    time = Time()
    scratch = job(lambda: time.passes(0.003), forward=lambda: time.passes(0.001), backward=lambda _: time.passes(0.002))
    clock = time.clock()
    seen: list[int] = []
    clock.start()
    scratch.steps(7, clock, before=seen.append)
    laps = clock.drain()
    assert seen == list(range(7))
    assert {name: np.round(laps[f"{name}_s"], 9).tolist() for name in ("data", "forward", "backward", "sync")} == {
        "data": [0.0] * 7,
        "forward": [0.001] * 7,
        "backward": [0.002] * 7,
        "sync": [0.003] * 7,
    }
    # Three batches make an epoch: the next one is the second of the third.
    expected = list(scratch.loader.epoch(2))[1]
    assert all(torch.equal(a, b) for a, b in zip(scratch.batch(), expected, strict=True))
