"""The proof of equality: its shares and measures, its verdicts, and what it proves with real workers."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.cli import main
from horovod_study.errors import ConfigError, RecordError, StudyError
from horovod_study.programs import equality
from horovod_study.programs.equality import BatchShares, _order_difference, _Weighted, distance, order_sha256
from horovod_study.report.terminal import equality_summary, equality_text, write_equality
from horovod_study.strain import native
from horovod_study.strain.dataset import Batches
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import bench as verifying
from horovod_study.studies.bench import BOUNDS, PARALLEL, Question, judge, shares, usable

NAMES = [f"{layer}.{part}" for layer in ("conv1", "conv2", "fc1", "fc2") for part in ("weight", "bias")]
REFERENCE = {"order_sha256": "aa", "rates": [0.1, 0.1], "rounding": 2e-6}


# ------------------------------------------------------------------------------------------------- shares, measures


@given(batch=st.integers(2, 40), workers=st.integers(1, 6), epoch=st.integers(0, 3))
def test_shares_in_the_order_of_ranks_are_the_global_batch(batch: int, workers: int, epoch: int) -> None:
    whole = Batches(100, batch=batch, rank=0, workers=1, seed=3).epoch(epoch)
    parts = [BatchShares(100, batch=batch, rank=rank, workers=workers, seed=3).epoch(epoch) for rank in range(workers)]
    sizes = [part.shape[1] for part in parts]

    assert np.concatenate(parts, axis=1).tolist() == whole.tolist()
    assert max(sizes) - min(sizes) <= 1
    assert sum(workers * size / batch for size in sizes) / workers == pytest.approx(1), "the weights have mean 1"


def test_a_shifted_share_takes_one_curve_of_its_neighbour() -> None:
    right = BatchShares(100, batch=7, rank=1, workers=2, seed=3).epoch(0)
    shifted = BatchShares(100, batch=7, rank=1, workers=2, seed=3, shifted=True).epoch(0)
    before = BatchShares(100, batch=7, rank=0, workers=2, seed=3, shifted=True).epoch(0)

    assert shifted.shape == right.shape == (14, 3)
    assert shifted[:, 1:].tolist() == right[:, :-1].tolist()
    assert shifted[:, 0].tolist() == before[:, -1].tolist()


@pytest.mark.parametrize(
    ("batch", "workers", "expected"),
    [(300, 1, {"even": 300}), (300, 4, {"even": 300, "uneven": 299}), (301, 2, {"even": 300, "uneven": 301})],
)
def test_global_batches_of_both_kinds(batch: int, workers: int, expected: dict[str, int]) -> None:
    assert shares(batch, workers) == expected


def test_the_weighted_mean_of_uneven_shards_is_the_mean_of_the_batch() -> None:
    """What the proof rests on, without workers: and unweighted it is another gradient."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(7, 3, dtype=torch.float64, generator=generator) for _ in range(2))

    def gradient(rows: slice, weight: float) -> torch.Tensor:
        factor = torch.ones(3, dtype=torch.float64, requires_grad=True)
        loss = F.mse_loss((inputs[rows] * factor).tanh(), targets[rows])
        _Weighted(StrainConfig(), torch.device("cpu"), weight).backward(loss)
        assert factor.grad is not None
        return factor.grad

    whole = gradient(slice(0, 7), 1.0)
    mean = (gradient(slice(0, 4), 2 * 4 / 7) + gradient(slice(4, 7), 2 * 3 / 7)) / 2
    unweighted = (gradient(slice(0, 4), 1.0) + gradient(slice(4, 7), 1.0)) / 2

    assert mean.numpy() == pytest.approx(whole.numpy(), rel=1e-14)
    assert unweighted.numpy() != pytest.approx(whole.numpy(), rel=1e-3)


def test_distances_are_relative_to_the_sequential_values() -> None:
    assert distance(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx((0.1, 0.125))
    assert distance(np.zeros(2), np.zeros(2)) == (0.0, 0.0)
    assert distance(np.ones(2), np.zeros(2)) == (math.inf, math.inf)
    assert math.isnan(distance(np.array([math.nan]), np.ones(1))[0])


def test_the_order_is_known_by_its_hash_and_a_difference_is_described(golden: Golden) -> None:
    rows = np.arange(12).reshape(2, 6)
    swapped = rows[:, [1, 0, 2, 3, 4, 5]]
    doubled = rows.copy()
    doubled[1, 0] = 8

    assert order_sha256(rows) == order_sha256(rows.astype(np.int32)) != order_sha256(swapped)
    assert _order_difference(rows, rows) == ""
    golden(_order_difference(swapped, rows), "step 1")
    golden(_order_difference(doubled, rows), "step 2", "6 curves", "1 taken")
    golden(_order_difference(rows[:, :5], rows), "2 steps", "5 curves")


def test_precisions_of_the_program_have_bounds() -> None:
    assert tuple(equality.DTYPES) == tuple(BOUNDS)


# ---------------------------------------------------------------------------------------------------------- verdicts


def case(**changes: Any) -> dict[str, Any]:
    """A case of the rank program that passes, on two workers, with `changes`; `error` is that of fc1.bias."""
    error = changes.pop("error", 1e-8)
    other = 1e-9 if changes.get("dtype") != "float64" else 1e-17
    columns = ("max_error", "gradient_error", "gradient_error_later")
    tensors = [
        {"name": name, "relative_error": error if name == "fc1.bias" else other, **dict.fromkeys(columns, 1e-7)}
        for name in NAMES
    ]
    values = {
        "runtime": "mpi/mpi",
        "transport": "mpi",
        "workers": 2,
        "reduction": "flat",
        "dtype": "float32",
        "shards": "even",
        "batch": 6,
        "steps": 2,
        "optimizer": "sgd",
        "order_sha256": "aa",
        "order_difference": "",
        "rates": [[0.1, 0.1], [0.1, 0.1]],
        "starts": [0.0, 0.0],
        "factor": 1.0,
        "ends_alike": [True, True],
    }
    return {**values, "tensors": tensors, **changes}


def test_a_good_case_passes_and_names_its_worst_tensor() -> None:
    verdict = judge(case(), REFERENCE)

    assert (verdict["passed"], verdict["worst"], verdict["why"], verdict["lr"]) == (True, "fc1.bias", "", 0.1)
    assert [verdict[f"same_{what}"] for what in ("order", "lr", "start", "operation")] == [True] * 4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"order_sha256": "bb", "order_difference": "in step 1 2 of 6 curves missing, 2 taken twice", "factor": 1.2},
            "order differs: in step 1 2 of 6 curves missing, 2 taken twice",
        ),
        (
            {"rates": [[0.2, 0.2], [0.2, 0.2]]},
            "rate differs: 0.2 instead of 0.1 in step 1 on all ranks, 2 times as large",
        ),
        (
            {"rates": [[0.1, 0.1], [0.1, 0.05]]},
            "rate differs: 0.05 instead of 0.1 in step 2 on rank 1, 0.5 times as large",
        ),
        (
            {"starts": [0.0, 0.3], "factor": 1.5, "ends_alike": [True, False]},
            "start differs: rank 1 begins with other parameters; rank 1 ends with other parameters than rank 0",
        ),
        ({"starts": [0.1, None]}, "start differs: ranks 0, 1 begin with other parameters"),
        (
            {"factor": 2.0000001},
            "operation differs: the averaged gradient is 2 times too large, a sum over the 2 workers in the place of "
            "their mean",
        ),
        (
            {"factor": 0.5},
            "operation differs: the averaged gradient is only 0.5 times the sequential one, divided by the 2 workers "
            "twice",
        ),
        ({"factor": 1.25}, "operation differs: the averaged gradient is 1.25 times too large"),
        ({"factor": None}, "operation differs: the averaged gradient is not finite"),
        (
            {"error": 3e-6},
            "fc1.bias differs though order, rate, start and operation agree: the first averaged gradient differs by "
            "1.0e-07, where float32 alone leaves 2.0e-06 in the sequential one; 2 steps have amplified it, try fewer "
            "--steps",
        ),
        ({"error": None}, "an error is not a finite number: the training diverged"),
        ({"error": None, "optimizer": "adam"}, "an error is not a finite number: the training diverged"),
    ],
)
def test_a_bad_case_fails_and_says_what_differs(changes: dict[str, Any], why: str) -> None:
    verdict = judge(case(**changes), REFERENCE)

    assert (verdict["passed"], verdict["why"]) == (False, why)


def test_the_bound_belongs_to_the_precision_and_adam_in_float32_has_none() -> None:
    exact = {"dtype": "float64", "error": 2e-14}

    assert judge(case(error=1e-6), REFERENCE)["passed"]
    assert not judge(case(**exact), REFERENCE)["passed"]
    assert not judge(case(**exact, optimizer="adam"), REFERENCE)["passed"]
    reported = judge(case(error=1e-3, optimizer="adam"), REFERENCE)
    assert (reported["passed"], reported["judged"]) == (True, False)
    assert not judge(case(optimizer="adam", factor=2.0), REFERENCE)["passed"], "its operation is judged all the same"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kernels": "native"},
            "--kernels.*float32.*--dtype float32",
        ),
        ({"workers": (2, 0)}, "--workers"),
        ({"workers": (17,)}, "--workers 17.*2 cores.*8 ranks"),
        ({"steps": 0}, "--steps"),
        ({"batch": 7, "workers": (4,)}, "--batch.*4 workers.*8 curves"),
        ({"broken": "sum", "workers": (1, 2)}, "--break.*--workers"),
    ],
)
def test_a_wrong_question_is_refused(values: dict[str, Any], message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message):
        Question(**values).check(2)


def test_runtimes_are_those_that_are_there(golden: Golden) -> None:
    missing: dict[str, str | None] = dict.fromkeys(PARALLEL, "not built")
    missing |= {"mpi/mpi": None, "ddp/nccl": None}

    chosen, reasons = usable(None, [1, 2], missing, gpus=1)
    assert chosen == [("ddp/nccl", 1), ("mpi/mpi", 1), ("mpi/mpi", 2)]
    assert reasons["ps/mpi"] == "not built"
    golden(reasons["ddp/nccl with 2 workers"], "NCCL", "GPU")
    assert usable(["mpi/mpi", "mpi/mpi"], [2], missing, gpus=0) == ([("mpi/mpi", 2)], {})
    with golden.raises(ConfigError, match="--runtime ps/mpi.*ddp/nccl"):
        usable(["ps/mpi"], [2], missing, gpus=1)


def test_the_sequential_run_has_the_rate_that_the_workers_should_have() -> None:
    question = Question(workers=(4,), lr_scaling="linear")
    names = [one["reference"] for one in question.trials(4)]

    assert {trial["lr"] for trial in question.trials(4)} == {StrainConfig().lr}
    assert {trial["lr"] for trial in question.trials(4, alone=True)} == {4 * StrainConfig().lr}
    assert [one["reference"] for one in question.trials(4, alone=True)] == names
    assert len({one["reference"] for count in (1, 2, 4) for one in question.trials(count)}) == 3 * 8 - 4


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequential training answers; every launch of workers fails."""

    def launched(runtime: str, workers: int, job: dict[str, Any], *_: Any) -> dict[str, Any]:
        if runtime != "serial":
            raise StudyError(f"{runtime} with {workers} workers failed: rank 1 was killed by SIGKILL")
        moved = {"fc1.bias": 0.1}
        references = [{**REFERENCE, "reference": one["reference"], "moved": moved} for one in job["trials"]]
        missing = {name: None if name == "mpi/mpi" else "not built" for name in PARALLEL}
        return {"references": references, "runtimes": missing, "gpus": 0}

    monkeypatch.setattr(verifying, "_launched", launched)


@pytest.mark.usefixtures("no_start")
def test_a_runtime_that_is_there_and_does_not_run_is_a_failure(tmp_path: Path, golden: Golden) -> None:
    """Left out silently, a broken backend would pass the proof."""
    told: list[str] = []
    result = verifying.verify(Question(dataset="400", batch=24), tmp_path, on_progress=told.append)

    assert not result["passed"]
    golden([one["why"] for one in result["cases"]], "mpi/mpi", "2 workers", "rank 1", "SIGKILL")
    golden(told[-1], "1/1", "mpi/mpi", "2 workers", "rank 1", "SIGKILL")
    golden(equality_text(result), "FAILED mpi/mpi", "2 workers")
    with golden.raises(StudyError, match="rank 1.*SIGKILL"):
        verifying.verify(Question(dataset="400", batch=24, runtime=("mpi/mpi",)), tmp_path, on_progress=told.append)


def test_what_computes_on_a_gpu_is_compared_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Golden
) -> None:
    jobs: list[tuple[str, str, set[str]]] = []

    def launched(runtime: str, workers: int, job: dict[str, Any], *_: Any) -> dict[str, Any]:
        jobs.append((runtime, job["config"]["device"], {one["reference"].split("-")[0] for one in job["trials"]}))
        if runtime == "serial":
            references = [{**REFERENCE, "reference": one["reference"], "moved": {}} for one in job["trials"]]
            missing = {name: None if name == "ddp/nccl" else "not built" for name in PARALLEL}
            return {"references": references, "runtimes": missing, "gpus": 1}
        return {"cases": [{**case(), "reference": one["reference"]} for one in job["trials"]]}

    monkeypatch.setattr(verifying, "_launched", launched)
    result = verifying.verify(Question(dataset="400", batch=24, workers=(1, 2)), tmp_path, on_progress=lambda _: None)

    assert jobs == [("serial", "cpu", {"cpu"}), ("serial", "cuda", {"cuda"}), ("ddp/nccl", "cuda", {"cuda"})]
    assert result["passed"]
    golden(result["unavailable"]["ddp/nccl with 2 workers"], "NCCL", "GPU")


# ----------------------------------------------------------------------------------------------------------- report


def result_of(*cases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    values = {
        "passed": all(one["passed"] for one in cases),
        "bounds": BOUNDS,
        "steps": 2,
        "batch": 6,
        "broken": None,
        "unavailable": {"ddp/mpi": "not built"},
        "cases": list(cases),
        "moved": {f"{dtype} {rule}": {"fc1.bias": 0.01} for dtype in BOUNDS for rule in ("adam", "sgd")},
    }
    return {**values, **changes}


def test_the_text_holds_every_tensor_the_conditions_and_the_verdict(golden: Golden) -> None:
    good = judge(case(), REFERENCE)
    exact = judge(case(dtype="float64", error=1e-16, optimizer="adam"), {**REFERENCE, "rounding": None})
    adam = judge(case(optimizer="adam", error=4e-6), REFERENCE)
    lines = equality_text(result_of(good, exact, adam)).splitlines()

    assert "float32, sgd, bound 1e-06" in lines
    row = "mpi/mpi        2  flat       1.0e-09  1.0e-09  1.0e-09  1.0e-09  1.0e-09  1.0e-08  1.0e-09  1.0e-09  equal"
    assert row in lines
    assert lines[lines.index(row) - 1].split() == [
        "runtime",
        "workers",
        "reduction",
        *["weight", "bias"] * 4,
        "verdict",
    ]
    assert lines[lines.index(row) - 2].split() == [layer for layer in ("conv1", "conv2", "fc1", "fc2") for _ in "ab"]
    reported = next(line for line in lines if line.startswith("float32 adam"))
    assert reported.split() == [*"float32 adam 4.0e-06 1.0e-07 1.0e-07 1.0e-07 2.0e-06 1.0e-02 reported".split()]
    golden(equality_text(result_of(good, exact, adam)), "3 cases", "0.1")
    golden(lines, "ddp/mpi")
    golden(
        lines[-1], "3 cases", "float32 1.0e-08", "fc1.bias", "mpi/mpi", "2 workers", "1e-06", "float64 1.0e-16", "1e-14"
    )


def test_failures_with_one_reason_are_one_line(golden: Golden) -> None:
    bad = [judge(case(factor=2.0, shards=kind, error=1e-3), REFERENCE) for kind in ("even", "uneven")]
    said = equality_text(result_of(*bad, broken="sum"))

    golden(said, "--break", "FAILED mpi/mpi", "2 workers", "float32", "1 more")
    assert said.count("operation differs") == 1
    assert "worst is fc1.bias, 1.0e-03" in said
    golden(equality_summary(result_of(*bad)), "NOT EQUAL", "2 cases", "float32 1.0e-03", "fc1.bias")


def test_a_diverged_case_is_the_worst_of_all(golden: Golden) -> None:
    diverged, good = judge(case(error=None), REFERENCE), judge(case(), REFERENCE)

    golden(equality_summary(result_of(good, diverged)), "float32", "fc1.bias")
    assert "no number" in equality_text(result_of(good, diverged))


def test_files_hold_every_case_and_tensor(tmp_path: Path, golden: Golden) -> None:
    result = result_of(judge(case(), REFERENCE), judge(case(shards="uneven", error=None), REFERENCE))
    paths = write_equality(result, tmp_path / "new")

    assert [path.name for path in paths] == ["verify.txt", "verify.json", "verify.csv"]
    assert paths[0].read_text(encoding="utf-8") == equality_text(result) + "\n"
    assert json.loads(paths[1].read_text(encoding="utf-8"))["cases"] == result["cases"]
    rows = list(csv.DictReader(paths[2].read_text(encoding="utf-8").splitlines()))
    assert [(row["shards"], row["tensor"], row["relative_error"]) for row in rows[5:14:8]] == [
        ("even", "fc1.bias", "1e-08"),
        ("uneven", "fc1.bias", ""),
    ]
    (tmp_path / "file").write_text("", encoding="utf-8")
    with golden.raises(RecordError, match="--out"):
        write_equality(result, tmp_path / "file")


# ------------------------------------------------------------------------------------------------------ command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "0"], "--workers"),
        (["--runtime", "dpp/gloo"], "ddp/gloo"),
        (["--runtime", "serial"], "horovod/mpi"),
        (["--dtype", "float46"], "float64"),
        (["--break", "sums"], "sum"),
        (["--dataset", "400", "--batch", "301"], "--batch"),
        (["--dataset", "nowhere"], ""),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert main(["bench", "equality", *words]) == 2
    printed = capsys.readouterr()

    golden(printed.err, message)
    assert (printed.out, printed.err.count("\n")) == ("", 1)


# ------------------------------------------------------------------------------------------------------ real workers

CPU = ("horovod/mpi", "horovod/gloo", "ddp/gloo", "mpi/mpi", "ps/mpi")


@pytest.fixture(scope="module")
def proven() -> dict[str, Any]:
    """Every runtime of a machine without GPU, two workers, both reductions, precisions, optimisers and shards."""
    return verifying.verify(Question(steps=3, batch=24, dataset="400", runtime=CPU))


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["flat", "hooks"])
@pytest.mark.parametrize("runtime", CPU)
def test_two_workers_equal_one_process(proven: dict[str, Any], runtime: str, reduction: str) -> None:
    cases = [one for one in proven["cases"] if (one["runtime"], one["reduction"]) == (runtime, reduction)]

    assert [one["why"] for one in cases] == [""] * 8
    assert all(one["passed"] for one in cases)
    assert {(one["dtype"], one["optimizer"], one["shards"], one["batch"]) for one in cases} == {
        (dtype, optimizer, shards, batch)
        for dtype in ("float32", "float64")
        for optimizer in ("adam", "sgd")
        for shards, batch in (("even", 24), ("uneven", 23))
    }
    assert [tensor["name"] for tensor in cases[0]["tensors"]] == NAMES
    assert {one["transport"] for one in cases} == {runtime.split("/")[1]}
    exact = [tensor for one in cases if one["dtype"] == "float64" for tensor in one["tensors"]]
    assert max(tensor["relative_error"] for tensor in exact) < 1e-14
    assert max(tensor["gradient_error"] for tensor in exact) < 1e-13
    assert max(abs(one["gradient_factor"] - 1) for one in cases if one["dtype"] == "float64") < 1e-14


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.skipif(not native.usable()[0], reason=native.usable()[1])
def test_the_native_step_in_two_workers_equals_pytorch_in_one_process() -> None:
    only = {"runtime": ("mpi/mpi", "horovod/mpi"), "dtype": ("float32",), "reduction": ("flat",)}
    cases = verifying.verify(Question(steps=3, batch=24, dataset="400", kernels="native", **only))["cases"]

    assert [(one["why"], one["passed"]) for one in cases] == [("", True)] * 8
    assert max(tensor["relative_error"] for one in cases for tensor in one["tensors"]) > 0, "PyTorch computed both"


@pytest.mark.horovod
@pytest.mark.slow
def test_more_workers_a_scaled_rate_and_a_second_epoch() -> None:
    """Five steps are an epoch of 300 curves here; the rate is linear in the number of workers."""
    question = Question(
        runtime=("mpi/mpi",),
        workers=(1, 3, 4),
        steps=6,
        batch=60,
        dataset="400",
        lr_scaling="linear",
        optimizer=("sgd",),
    )
    cases = verifying.verify(question)["cases"]

    assert [one["why"] for one in cases] == [""] * len(cases)
    lrs = {one["workers"]: one["lr"] for one in cases}
    assert lrs == pytest.approx({count: count * StrainConfig().lr for count in (1, 3, 4)})
    assert {(one["workers"], one["shards"], one["batch"]) for one in cases} == {
        (1, "even", 60),
        *((count, shards, batch) for count in (3, 4) for shards, batch in (("even", 60), ("uneven", 59))),
    }
    assert {one["order_sha256"] for one in cases if one["shards"] == "even"} == {cases[0]["order_sha256"]}
    alone = [tensor["relative_error"] for one in cases if one["workers"] == 1 for tensor in one["tensors"]]
    assert alone == [0.0] * 16, "one worker inside MPI is the sequential run, bit for bit"


REASONS = {
    "sum": "operation differs: the averaged gradient is 2 times too large, a sum over the 2 workers in the place of",
    "shard": "order differs: in step 1 1 of 23 curves missing, 1 taken twice",
    "lr": "rate differs: 0.00094662 instead of 0.00047331 in step 1 on all ranks, 2 times as large",
    "start": "start differs: rank 1 begins with other parameters; rank 1 ends with other parameters than rank 0",
}


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.parametrize("how", REASONS)
def test_wrong_on_purpose_it_fails_and_says_why(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench equality --runtime mpi/mpi --dtype float32 --reduction flat --steps 2".split()
    words += "--batch 23 --dataset 400 --json".split()

    assert main([*words, "--break", how]) == 1
    result = json.loads(capsys.readouterr().out)
    cases = result["cases"]
    assert (result["passed"], [one["passed"] for one in cases]) == (False, [False] * 4)
    assert all(one["why"].startswith(REASONS[how].replace("23", str(one["batch"]))) for one in cases), cases[0]["why"]
    condition = {"sum": "operation", "shard": "order", "lr": "lr", "start": "start"}
    for name in ("order", "lr", "start"):
        assert {one[f"same_{name}"] for one in cases} == {name != condition[how]}
    sgd = next(one for one in cases if one["optimizer"] == "sgd")
    assert max(tensor["relative_error"] for tensor in sgd["tensors"]) > 1e-6, "and the parameters show it, too"
