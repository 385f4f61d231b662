"""The matrix peak of a core, the operations of a step, and the benchmark that puts them beside each other."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make.wording import Golden
from torch.utils.flop_counter import FlopCounterMode

import horovod_study
from horovod_study.analysis.machine.network import memory_bytes
from horovod_study.programs.microbench import (
    IN_REGISTERS,
    MatrixRate,
    copy_kinds,
    copy_seconds,
    matrix_rates,
    model_facts,
    step_bytes,
    step_flops,
    step_roofline,
)
from horovod_study.strain import native
from horovod_study.strain.model import StressCNN


@pytest.mark.parametrize("memory_format", ["channels-last", "contiguous"])
@pytest.mark.parametrize("widths", [(15, 38, 197), (8, 16, 32), (1, 1, 1)])
def test_operations_of_a_step_are_those_torch_counts(widths: tuple[int, int, int], memory_format: str) -> None:
    model = StressCNN(widths=widths, memory_format=memory_format)
    with FlopCounterMode(display=False) as counter:
        F.mse_loss(model(torch.zeros(4, 3, 201)), torch.zeros(4, 2)).backward()

    assert counter.get_total_flops() == 4 * step_flops(widths)


def test_operations_of_the_shipped_model() -> None:
    assert step_flops((15, 38, 197)) == 2_121_084


@pytest.mark.parametrize("widths", ["15-38-197", "8-16-32"])
def test_bytes_of_a_step_are_those_of_the_roofline_and_the_gather(widths: str) -> None:
    facts = model_facts(widths, 75)
    first, second, hidden = (int(part) for part in widths.split("-"))
    model, numbers = StressCNN(widths=(first, second, hidden)), list[int]()
    for layer in (model.conv1, model.conv2, model.fc1, model.fc2):
        layer.register_forward_hook(lambda _, given, made: numbers.extend((given[0].numel(), made.numel())))
    model(torch.zeros(1, 3, 201))
    assert facts["activations_per_curve"] == sum(numbers)
    roofline = memory_bytes(parameters=facts["parameters"], activations_per_curve=sum(numbers), batch=75)

    assert step_bytes((first, second, hidden), 75) == roofline + 75 * 2 * 4 * (603 + 2)


def test_fused_kernels_move_fewer_bytes_of_the_shipped_model() -> None:
    """Worked manually for one curve: 4 (1206 + 2 + 325 * 15 + 120 * 38 + 5 * 197) + 130 * 15 + 60 * 38."""
    per_curve = step_bytes((15, 38, 197), 2, kernels="fused") - step_bytes((15, 38, 197), 1, kernels="fused")

    assert per_curve == 4 * (1208 + 4875 + 4560 + 985) + 1950 + 2280 == 50_742
    assert step_bytes((15, 38, 197), 75, kernels="fused") == 40 * 153_441 + 75 * per_curve
    assert step_bytes((15, 38, 197), 75, kernels="fused") < 0.75 * step_bytes((15, 38, 197), 75)


@pytest.mark.parametrize(
    ("launches", "batch", "bound", "seconds"),
    [(100, 75, "launching", 200e-6), (12, 75, "launching", 24e-6), (None, 1024, "moving", 109_483_816 / 2e12)],
)
def test_what_bounds_a_step_is_the_longest_of_three(
    launches: int | None, batch: int, bound: str, seconds: float
) -> None:
    found = step_roofline(
        step_s=400e-6, widths=(15, 38, 197), batch=batch, launches=launches, launch_each_s=2e-6, bytes_per_s=2e12,
        flop_per_s=100e12,
    )  # fmt: skip

    assert (found["bound"], found["share"]) == (bound, pytest.approx(seconds / 400e-6))
    assert found["operations"] == batch * 2_121_084 and found["computing_s"] == pytest.approx(batch * 2.121084e-8)
    assert found["launching_s"] == (None if launches is None else pytest.approx(launches * 2e-6))


def test_copies_in_the_memory_of_the_host() -> None:
    ((name, (source, target)),) = copy_kinds(torch.device("cpu"), 2**16).items()

    assert (name, source.nbytes, target.nbytes) == ("host memory", 2**16, 2**16)
    assert copy_seconds(source, target, 0.001) > 0


def test_rates_are_measured_for_each_type_and_size() -> None:
    threads = torch.get_num_threads()
    rates = matrix_rates(sizes=(16, 32), rounds=3, seconds=0.001)

    assert torch.get_num_threads() == threads
    assert [(rate.dtype, rate.size) for rate in rates] == [
        ("float32", 16),
        ("float32", 32),
        ("bf16", 16),
        ("bf16", 32),
        *([("float32", IN_REGISTERS)] if native.usable()[0] else []),
    ]
    for rate in rates:
        assert 0 < rate.gflops_min <= rate.gflops_median <= rate.gflops_max
        assert rate.rounds == 3


def test_the_peak_is_the_fastest_size_of_a_type() -> None:
    def rate(dtype: str, size: int, gflops: float) -> MatrixRate:
        return MatrixRate(dtype=dtype, size=size, gflops_median=gflops, gflops_min=gflops, gflops_max=gflops, rounds=1)

    rates = [rate("float32", 256, 90), rate("float32", 512, 110), rate("float32", 1024, 100), rate("bf16", 256, 400)]

    assert max((rate for rate in rates if rate.dtype == "float32"), key=lambda rate: rate.gflops_median).size == 512
    assert max(rate.gflops_median for rate in rates if rate.dtype == "bf16") == 400


# ------------------------------------------------------------------------------------------------ benchmarks/step.py

BENCHMARK = Path(horovod_study.__file__).parent.parent / "benchmarks" / "step.py"


@pytest.fixture(scope="module")
def step() -> Any:
    """benchmarks/step.py as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_step", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.1, 1.2, 1.01], "faster"),
        ([0.9, 0.99, 0.5], "slower"),
        ([0.9, 1.1, 1.2], "within the spread"),
        ([1.0, 1.0, 1.0], None),
        ([1.1, 1.2], None),
        ([], None),
    ],
)
def test_an_effect_is_named_where_all_rounds_agree(step: Any, ratios: list[float], word: str | None) -> None:
    assert step.effect(ratios) == word


def test_rows_compare_with_the_default_of_the_same_round(step: Any, golden: Golden) -> None:
    def runs(*speeds: float | None) -> list[dict[str, Any]]:
        return [{"samples_per_s": speed, "reason": "broken"} for speed in speeds]

    measured = {"default": runs(100.0, 200.0, None, 400.0), "compile": runs(50.0, None, 300.0, 100.0)}
    variants = [step.Variant(name="default"), step.Variant(name="compile", options=("--compile",))]
    default, compiled = step.rows(measured, {"float32": 1e-3, "bf16": 4e-3}, variants)

    assert (default["samples_per_s_median"], default["failed"]) == (200.0, 1)
    assert (compiled["samples_per_s_min"], compiled["samples_per_s_max"]) == (50.0, 300.0)
    assert (compiled["of_default_min"], compiled["of_default_max"]) == (0.25, 0.5)
    assert default["gflops_median"] == pytest.approx(200 * 2_121_084 / 1e9)
    assert default["of_peak_median"] == pytest.approx(200 * 2_121_084 / 1e9 / 1e-3)
    golden(step.markdown(75, [default, compiled]), "4 runs")


def test_a_failed_variant_has_an_empty_row(step: Any) -> None:
    measured = {"default": [{"samples_per_s": None, "reason": "broken"}]}
    table = step.rows(measured, {"float32": 100.0}, [step.Variant(name="default")])

    assert table[0]["of_peak_median"] is None
    assert "| default | failed | | | | | | | |" in step.markdown(75, table)


@pytest.mark.slow
def test_the_benchmark_of_the_step_runs(tmp_path: Path, golden: Golden) -> None:
    chosen = "own memory|plain|tf32"
    settings = ["--rounds", "1", "--seconds", "0.1", "--batches", "20", "--curves", "4000", "--only", chosen]
    settings += ["--products", "256", "512"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *settings, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr

    document = json.loads((tmp_path / "step.json").read_text())
    golden([row["variant"] for row in document["batches"]["20"]], "default", "plain PyTorch")
    for row in document["batches"]["20"]:
        assert row["failed"] == 0
        assert row["samples_per_s_median"] > 0
        assert row["of_peak_median"] > 0
    assert document["operations_per_curve"] == 2_121_084
    assert [(rate["dtype"], rate["size"]) for rate in document["matrix_products"]][:2] == [
        ("float32", 256),
        ("float32", 512),
    ]
    assert document["refused"].keys() == {"precision tf32"}
    golden(document["refused"]["precision tf32"], "tf32", "GPU", "CPU")
    text = (tmp_path / "step.md").read_text()
    assert text in done.stdout
    assert "| plain PyTorch |" in text
