"""Captured steps against plain ones, on a CPU: called again, and replayed from a tape that knows nothing of Python."""

import copy
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BIN, LAUNCHERS
from make.wording import Golden
from torch.utils._python_dispatch import TorchDispatchMode

from horovod_study.comm.base import FlatGradients, SerialBackend
from horovod_study.comm.launch import Launch
from horovod_study.errors import BackendError, StudyError
from horovod_study.measure.clock import LapClock, Unstamped
from horovod_study.strain import graphs
from horovod_study.strain.graphs import CapturedStep, HostGraph, Resident
from horovod_study.strain.kernels import BlockSizes, Sizes
from horovod_study.strain.loaders import Batch
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, learning_rate, make_optimizer, set_learning_rate
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.trainer import train_step

CPU = torch.device("cpu")
ALONE = Launch(rank=0, workers=1, launcher="none", backend="serial")
BATCH, CURVES, STEPS = 4, 40, 12
WIDTHS = (4, 6, 10)


@pytest.fixture(autouse=True)
def _replayed_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_REPLAY_ON_HOST", "1")


class Tape(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: operations are noted with their tensors, and repeated without Python.

    A replay does the same operations on the same tensors, and writes where was written first. It differs from a step
    that is called again in all that a graph can get wrong: numbers that Python read once, tensors that are others in
    the next step, values that are read on the host. A capture leaves all tensors as they were, and those made in it
    without a value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._done: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a value was read on the host")
        if func._schema.is_mutable:
            # All that are given, for a schema is not always exact about the parts of a list.
            self._before += [(each, each.clone()) for each in tensors((*args, *kwargs.values()))]
        out = func(*args, **kwargs)
        shared = any(each.alias_info is not None for each in func._schema.returns)
        if func._schema.is_mutable or not shared:
            self._done.append((func, args, kwargs, [] if shared else tensors((out,))))
        return out

    def capture(self, work: Callable[[], None]) -> None:
        with self:
            work()
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.data.copy_(before)  # unseen by autograd, as a capture is
            for *_, made in self._done:
                for each in made:
                    if each.is_floating_point():
                        each.data.fill_(math.nan)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, made in self._done:
                for place, value in zip(made, tensors((func(*args, **kwargs),)), strict=bool(made)):
                    place.copy_(value)


class OneDevice(TorchDispatchMode):
    """Refuses what a graph of device `meta` could not hold: operations with a tensor of the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(not each.is_meta for each in tensors((*args, *(kwargs or {}).values()))):
            raise RuntimeError(f"{func} was given a tensor of the host")
        return func(*args, **(kwargs or {}))

    def capture(self, work: Callable[[], None]) -> None:
        with self:
            work()

    def replay(self) -> None:
        pass


def tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += tensors(each)
    return found


class Twin(SerialBackend):
    """One of two ranks that do the same: the other's gradients are equal, and so the sum of shares is the gradient."""

    name, transport, reduction, workers = "twin", "none", "flat", 2

    def __init__(self, model: StressCNN, *, capturable: bool = False) -> None:
        super().__init__(StrainConfig(), ALONE)
        self.flat: FlatGradients | None = FlatGradients(model.parameters(), workers=2)
        self.capturable = capturable
        self.exchanged = 0

    def pack_gradients(self) -> None:
        assert self.flat is not None
        self.flat.pack()

    def exchange(self) -> None:
        assert self.flat is not None
        self.exchanged += 1
        self.flat.buffer.mul_(2)

    def synchronize(self, optimizer: torch.optim.Optimizer) -> None:
        self.pack_gradients()
        self.exchange()

    @property
    def local_norm2(self) -> torch.Tensor | None:  # type: ignore[override]
        return self.flat.norm2 if self.flat else None


class Training:
    """A small training, plain or captured, that starts the same whenever it is made."""

    def __init__(self, *, twin: bool = False, capturable: bool = False, **options: Any) -> None:
        self.config = StrainConfig(**{"batch": BATCH, "lr": 2e-3, "cuda_graphs": True, **options})
        torch.manual_seed(3)
        self.curves, self.targets = torch.randn(CURVES, 3, 201), torch.randn(CURVES, 2)
        self.model = StressCNN(widths=WIDTHS)
        self.optimizer, _ = make_optimizer(self.config, self.model.parameters(), workers=1)
        self.backend: Any = Twin(self.model, capturable=capturable) if twin else SerialBackend(self.config, ALONE)
        self.arithmetic = Arithmetic(self.config, CPU)
        self.seen: list[str] = []
        self.clock: Any = _Laps(self.seen)

    def captured(
        self,
        record: Callable[[], Any] | None = None,
        *,
        phases: bool = False,
        resident: bool = True,
        device: torch.device = CPU,
        blocks: BlockSizes | None = None,
    ) -> CapturedStep:
        return CapturedStep(
            self.config,
            model=self.model,
            bare_model=self.model,
            optimizer=self.optimizer,
            backend=self.backend,
            arithmetic=self.arithmetic,
            device=device,
            resident=Resident(curves=self.curves, targets=self.targets) if resident else None,
            phases=phases,
            blocks=blocks,
            record=record,
        )

    def batch(self, rows: torch.Tensor) -> Batch:
        return self.curves[rows], self.targets[rows]

    def plain(self, epochs: list[torch.Tensor], rates: list[float] | None = None) -> tuple[list[float], list[float]]:
        """Make plain steps of the batches of `epochs`, each (steps, B); return the losses and the squared norms."""
        losses, norms = [], []
        for step, rows in enumerate(torch.cat(epochs)):
            if rates:
                set_learning_rate(self.optimizer, rates[step])
            curves, targets = self.batch(rows)
            loss = train_step(self.model, self.optimizer, curves, targets, self.backend, Unstamped(), self.arithmetic)
            losses.append(loss.item())
            norms.append(math.nan if self.backend.local_norm2 is None else self.backend.local_norm2.item())
        return losses, norms

    def taken(
        self, step: CapturedStep, epochs: list[torch.Tensor], rates: list[float] | None = None, *, resident: bool = True
    ) -> tuple[list[float], list[float]]:
        """Make the same steps with `step`; what it returns is read at the end, as training does."""
        losses, norms, made = [], [], 0
        for order in epochs:
            if resident:
                step.begin_epoch(order)
            for rows in order:
                if rates:
                    set_learning_rate(self.optimizer, rates[made])
                losses.append(step.take(None if resident else self.batch(rows), self.clock))
                norms.append(step.norm2)
                made += 1
        return [each.item() for each in losses], [math.nan if each is None else each.item() for each in norms]

    def weights(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten() for each in self.model.parameters()])


class _Laps(LapClock):
    """Notes the names of the laps."""

    def __init__(self, seen: list[str]) -> None:
        self._seen_names = seen

    def lap(self, name: str, at: Any = None) -> None:
        self._seen_names.append(name)


def orders(*lengths: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(11)
    return [torch.randint(0, CURVES, (length, BATCH), generator=random) for length in lengths]


COSINE = [2e-3 * (1 + math.cos(math.pi * step / STEPS)) / 2 for step in range(STEPS)]
WAYS = [HostGraph, Tape]


@pytest.mark.slow
@pytest.mark.parametrize("record", WAYS)
@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"optimizer": "adamw", "weight_decay": 0.02},
        {"optimizer": "sgd", "weight_decay": 0.01, "lr": 1e-2},
    ],
    ids=lambda options: options["optimizer"],
)
def test_captured_steps_are_the_plain_ones_bit_for_bit(
    record: Callable[[], Any], phases: bool, resident: bool, options: dict[str, Any]
) -> None:
    """Two epochs of different lengths, and a rate that changes with every step."""
    epochs = orders(7, 5)
    plain, captured = Training(cuda_graphs=False, **options), Training(**options)
    expected, _ = plain.plain(epochs, COSINE)
    step = captured.captured(record, phases=phases, resident=resident)
    losses, norms = captured.taken(step, epochs, COSINE, resident=resident)

    assert losses == expected
    assert torch.equal(captured.weights(), plain.weights())
    assert len(set(losses)) == STEPS and not torch.equal(plain.weights(), Training().weights()), "something is trained"
    assert all(math.isnan(each) for each in norms), "nothing is averaged"
    laps = ["forward", "backward", "sync", "update"] if phases else ["compute"]
    assert captured.seen == (laps if resident else ["data", *laps]) * STEPS
    assert learning_rate(captured.optimizer) == COSINE[-1]


@pytest.mark.parametrize("record", WAYS)
@pytest.mark.parametrize(
    ("phases", "inside", "laps"),
    [
        (False, False, ["compute", "sync", "update"]),
        (True, False, ["forward", "backward", "sync", "update"]),
        (False, True, ["compute"]),
    ],
)
def test_what_is_averaged_between_graphs_or_inside_one_is_what_plain_steps_average(
    record: Callable[[], Any], phases: bool, inside: bool, laps: list[str]
) -> None:
    epochs = orders(STEPS)
    plain = Training(twin=True, cuda_graphs=False)
    captured = Training(twin=True, capturable=inside, capture_sync=inside)
    expected, norms = plain.plain(epochs)
    step = captured.captured(record, phases=phases)
    assert captured.backend.exchanged == (4 if inside and record is Tape else 3 if inside else 0), "only where captured"
    found, found_norms = captured.taken(step, epochs)

    assert (found, found_norms) == (expected, norms)
    assert torch.equal(captured.weights(), plain.weights())
    assert expected == Training(cuda_graphs=False).plain(epochs)[0], "twins do what one worker does"
    assert captured.seen == laps * STEPS
    if not inside:
        assert captured.backend.exchanged == STEPS


def test_an_average_that_cannot_be_captured_is_refused(golden: Golden) -> None:
    training = Training(twin=True, capture_sync=True)
    with golden.raises(BackendError, match="capture_sync.*NCCL"):
        training.captured()


@pytest.mark.parametrize("record", WAYS)
def test_the_loss_scaling_of_fp16_is_captured_too(record: Callable[[], Any]) -> None:
    """Overflows skip their steps and lower the scale, with nothing read on the host."""
    epochs = orders(STEPS)
    plain, captured = Training(cuda_graphs=False), Training()
    for each in (plain, captured):
        # So large that the first steps overflow, and grows again after three steps that do not.
        each.arithmetic.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
        each.targets *= 1e3
    expected, _ = plain.plain(epochs)
    step = captured.captured(record)
    assert captured.arithmetic.scaler is not None and plain.arithmetic.scaler is not None
    assert captured.arithmetic.scaler.get_scale() == 2.0**127, "the warm-up has left no trace"
    found, _ = captured.taken(step, epochs)

    assert found == expected
    assert torch.equal(captured.weights(), plain.weights())
    assert captured.arithmetic.scaler.state_dict() == plain.arithmetic.scaler.state_dict()
    assert plain.arithmetic.scaler.get_scale() < 2.0**127
    steps = {int(slots["step"]) for slots in captured.optimizer.state.values()}
    assert steps == {int(slots["step"]) for slots in plain.optimizer.state.values()}
    assert 0 < steps.pop() < STEPS, "some were skipped, not all"


@pytest.mark.parametrize("twin", [False, True])
def test_capturing_leaves_no_trace(twin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a training, and at its begin, where the optimiser has no state yet."""
    monkeypatch.setattr(graphs, "RING", 5)
    training = Training(twin=twin)
    random = torch.random.get_rng_state()

    def state() -> dict[str, Any]:
        return copy.deepcopy({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()})

    begin = state()
    step = training.captured()
    assert torch.equal(random, torch.random.get_rng_state())
    same(begin["model"], training.model.state_dict())
    assert not begin["optimizer"]["state"]
    for slots in training.optimizer.state_dict()["state"].values():
        assert slots.keys() == {"step", "exp_avg", "exp_avg_sq"} and not any(each.any() for each in slots.values())

    training.taken(step, orders(STEPS))
    middle, rings = state(), (step._ring.clone(), step._norms.clone())
    assert rings[0].all() and bool(rings[1].all()) is twin
    step.forget()
    assert all(each.grad is None for each in training.model.parameters()), "their memory is free"
    step._capture()
    same([middle, *rings], [state(), step._ring, step._norms])

    other = Training(twin=twin)
    expected, _ = other.plain(orders(STEPS) + orders(5))
    again, _ = training.taken(step, orders(5))
    assert again == expected[STEPS:]


def same(a: Any, b: Any) -> None:
    """Assert that two states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            same(a[name], b[name])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    else:
        assert a == b


def test_a_failed_capture_leaves_no_trace_either_and_says_what_to_do(golden: Golden) -> None:
    class Spoilt(HostGraph):
        def capture(self, work: Callable[[], None]) -> None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")

    training = Training()
    before = training.weights().clone()
    with pytest.raises(StudyError) as found:
        training.captured(Spoilt)

    golden(str(found.value), "CUDA", "cuda_graphs")
    assert torch.equal(before, training.weights())
    training = Training(compile=True)
    with golden.raises(StudyError, match="cuda_graphs"):
        training.captured(Spoilt)

    def broken(curves: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the warm-up")

    training.model.forward = broken  # type: ignore[method-assign]
    with golden.raises(StudyError, match="CUDA.*cuda_graphs"):
        training.captured()
    assert torch.equal(before, training.weights())


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_updates_that_are_not_fused_are_captured_in_the_way_that_torch_has_for_graphs(
    monkeypatch: pytest.MonkeyPatch, kind: str, weight_decay: float
) -> None:
    """torch keeps this way from a CPU, though every operation of it is there: its list of devices is made longer."""
    module = importlib.import_module("torch.optim.adam")  # the package hides it
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda: ["cpu"])
    epochs, options = orders(7, 5), {"optimizer": kind, "fused_optimizer": False, "weight_decay": weight_decay}
    plain, captured = Training(cuda_graphs=False, **options), Training(**options)
    captured.optimizer.param_groups[0]["capturable"] = True
    expected, _ = plain.plain(epochs, COSINE)
    found, _ = captured.taken(captured.captured(Tape), epochs, COSINE)

    assert found == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(captured.weights(), plain.weights(), atol=1e-6)


@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize("resident", [False, True])
def test_all_that_a_step_works_with_is_on_its_device(
    monkeypatch: pytest.MonkeyPatch, phases: bool, resident: bool
) -> None:
    """On torch's device without memory, where nothing can be read and no tensor of another device be used."""
    module = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda: ["meta"])
    training = Training(fused_optimizer=False)
    training.model.to("meta")
    training.optimizer = torch.optim.Adam(training.model.parameters(), capturable=True, fused=False)
    training.optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    training.backend = Twin(training.model)
    training.curves, training.targets = training.curves.to("meta"), training.targets.to("meta")
    step = training.captured(OneDevice, device=torch.device("meta"), phases=phases, resident=resident)
    if resident:
        step.begin_epoch(orders(1)[0])
    loss = step.take(None if resident else training.batch(orders(1)[0][0]), training.clock)

    assert loss.is_meta and step.norm2 is not None and step.norm2.is_meta
    with pytest.raises(RuntimeError, match="meta"):
        loss.item()


def test_bfloat16_is_captured_too() -> None:
    epochs = orders(6)
    plain, captured = Training(cuda_graphs=False, precision="bf16"), Training(precision="bf16")
    expected, _ = plain.plain(epochs)

    assert captured.taken(captured.captured(Tape), epochs)[0] == expected


def test_a_value_read_on_the_host_is_found_by_the_tape(golden: Golden) -> None:
    """The tests above prove nothing if their tape lets everything pass."""
    training = Training(fused_optimizer=False)
    with golden.raises(StudyError, match="cuda_graphs"):
        training.captured(Tape)

    training = Training()
    whole, calls = training.model.forward, []

    def counts(curves: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return whole(curves) * len(calls)

    training.model.forward = counts  # type: ignore[method-assign]
    losses = [training.taken(training.captured(record), orders(3))[0] for record in (Tape, Tape)]
    assert len(calls) == 2 * (graphs.WARM_UP_STEPS + 1) and losses[0] != losses[1]


def test_losses_and_norms_stay_in_place_until_their_ring_comes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RING", 5)
    training = Training(twin=True)
    plain = Training(twin=True, cuda_graphs=False)
    epochs = orders(STEPS)
    expected, norms = plain.plain(epochs)
    step = training.captured()
    step.begin_epoch(epochs[0])
    losses: list[torch.Tensor] = []
    norms2: list[Any] = []
    for made in range(STEPS):
        losses.append(step.take(None, training.clock))
        norms2.append(step.norm2)
        first = max(0, made - 4)
        assert [each.item() for each in losses[first:]] == expected[first : made + 1]
        assert [each.item() for each in norms2[first:]] == norms[first : made + 1]
        assert losses[-1].shape == norms2[-1].shape == ()
    assert losses[0].item() == expected[10], "five steps later the place is written again"


def test_an_order_longer_than_any_epoch_is_recorded_anew() -> None:
    epochs = [*orders(3), torch.arange(4 * CURVES).reshape(-1, BATCH) % CURVES]
    plain, captured = Training(cuda_graphs=False), Training()
    made: list[HostGraph] = []

    def record() -> HostGraph:
        made.append(HostGraph())
        return made[-1]

    expected, _ = plain.plain(epochs)
    step = captured.captured(record)
    assert captured.taken(step, epochs)[0] == expected
    assert len(made) == 2


def test_steps_without_a_batch_are_refused(golden: Golden) -> None:
    training = Training()
    step = training.captured()
    with golden.raises(RuntimeError, match="begin_epoch"):
        step.take(None, training.clock)
    training.taken(step, orders(2))
    with golden.raises(RuntimeError):
        step.take(None, training.clock)


def test_gradients_that_others_clear_between_steps_change_nothing() -> None:
    """Measurements beside the training make plain steps with the same model."""
    for record in WAYS:
        epochs = orders(6)
        plain, captured = Training(cuda_graphs=False), Training()
        expected, _ = plain.plain(epochs)
        step = captured.captured(record)
        step.begin_epoch(epochs[0])
        losses = []
        for _ in range(6):
            losses.append(step.take(None, captured.clock))
            captured.optimizer.zero_grad()
        assert [each.item() for each in losses] == expected


@pytest.mark.slow
def test_kernels_made_for_this_network_are_captured_like_torchs() -> None:
    """In Triton's interpreter, in a process of its own: it must be chosen before the kernels are read."""
    pytest.importorskip("triton")
    program = (
        "from test_graphs import *\n"
        "epochs, plain = orders(1, 1), Training(twin=True, cuda_graphs=False)\n"
        "fused = Training(twin=True, kernels='fused')\n"
        "expected = plain.plain(epochs)\n"
        "step = fused.captured(HostGraph)\n"
        "fused.optimizer.zero_grad()\n"
        "print(json.dumps([expected, fused.taken(step, epochs), fused.seen]))\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    expected, found, laps = json.loads(done.stdout)

    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)
    assert laps == ["compute", "sync", "update"] * 2


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("backend", ["mpi", "horovod"])
def test_two_ranks_average_between_graphs_as_between_plain_steps(backend: str, tmp_path: Path) -> None:
    line = [str(part).format(workers=2) for part in LAUNCHERS["mpirun"]]
    done = subprocess.run(
        [*line, str(Path(__file__).with_name("captured_ranks.py")), backend, str(tmp_path / "found")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(text) for text in (tmp_path / "found").read_text().splitlines()]
    assert [(each.pop("reduction"), each.pop("source")) for each in found] == [
        ("flat", "chosen: a CUDA graph captures no hooks")
    ] * 2
    names = ("start kept", "losses equal", "weights equal", "ranks equal", "own losses", "norm2 kept")
    assert found == [dict.fromkeys(names, True)] * 2


def test_fused_kernels_are_made_with_the_blocks_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def network(model: StressCNN, **rest: Any) -> None:
        given.append(rest)
        raise StudyError("seen")

    own = Training(kernels="fused")
    blocks = replace(BlockSizes.fitting(Sizes.of(own.model, BATCH)), warps={"head": 4})
    monkeypatch.setattr(graphs, "FusedNetwork", network)
    with pytest.raises(StudyError, match="seen"):
        own.captured(blocks=blocks)
    assert given[0]["blocks"] is blocks
