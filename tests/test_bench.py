"""`horovod-study bench`: its jobs, its tables and files, its complaints, and two ranks that really measure."""

import json
from pathlib import Path
from typing import Any

import pytest
from make.bench_document import MODEL, document
from make.wording import Golden

from horovod_study import cli
from horovod_study.analysis.machine.network import analyze, restored
from horovod_study.errors import ConfigError, StudyError
from horovod_study.programs.microbench import step_roofline
from horovod_study.records import finite
from horovod_study.report.figures.bench import allreduce_table, text, write_bench
from horovod_study.studies import bench
from horovod_study.studies.bench import BenchJob, byte_count, message_sizes, plan_jobs, run_bench, worker_count

# ------------------------------------------------------------------------------------------------------- jobs


def test_raw_transports_take_turns_with_horovod_over_mpi() -> None:
    assert plan_jobs(["mpi", "gloo"], ["horovod/gloo", "horovod/mpi", "ddp/gloo"]) == [
        BenchJob(runtime="horovod/gloo"),
        BenchJob(runtime="horovod/mpi", transports=("mpi", "gloo")),
        BenchJob(runtime="ddp/gloo"),
    ]


@pytest.mark.parametrize(
    ("transports", "runtimes", "jobs"),
    [
        (["mpi"], [], [BenchJob(runtime="mpi/mpi", transports=("mpi",), itself=False)]),
        (["gloo"], [], [BenchJob(runtime="ddp/gloo", transports=("gloo",), itself=False)]),
        (["gloo"], ["horovod/gloo"], [BenchJob(runtime="horovod/gloo", transports=("gloo",))]),
        (
            ["mpi", "mpi"],
            ["horovod/gloo"],
            [BenchJob(runtime="mpi/mpi", transports=("mpi",), itself=False), BenchJob(runtime="horovod/gloo")],
        ),
        ([], ["ddp/gloo"], [BenchJob(runtime="ddp/gloo")]),
        (None, ["mpi/mpi"], [BenchJob(runtime="mpi/mpi", transports=("mpi", "gloo", "nccl"))]),
    ],
)
def test_a_job_is_made_where_no_other_can_host(
    transports: list[str] | None, runtimes: list[str], jobs: list[BenchJob]
) -> None:
    assert plan_jobs(transports, runtimes) == jobs


def test_what_nobody_asked_for_by_name_may_be_missing() -> None:
    assert all(not job.asked for job in plan_jobs(None, None))


def test_sizes_are_a_row_and_the_models_own() -> None:
    sizes = message_sizes(None, min_bytes=4, max_bytes=2**28, factor=4, workers=2, model=MODEL)

    assert set(sizes) == {4 * 4**k for k in range(14)} | {60, 900, 598_880, 613_764}
    assert list(sizes) == sorted(sizes)
    assert message_sizes([8, 1024], min_bytes=4, max_bytes=None, factor=4, workers=2, model=MODEL) == (
        *(8, 60, 900, 1024),
        *(598_880, 613_764),
    )


@pytest.mark.parametrize(
    ("text", "size"), [("4", 4), ("64K", 65_536), ("1m", 2**20), ("2GB", 2**31), (" 256M ", 2**28), ("0", 0)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert byte_count(text) == size


def test_without_room_the_row_ends_before(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 640 * 2**20})
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    sizes = message_sizes(None, min_bytes=4, max_bytes=None, factor=4, workers=4, model=MODEL)

    assert max(sizes) == 2**24


def test_one_worker_is_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod_study.studies.bench._has_gpu", lambda: True)

    assert worker_count(1, 16) == 1
    assert worker_count(None, 16) == 16


@pytest.mark.slow
def test_what_a_gpu_tells_is_shown(tmp_path: Path, golden: Golden) -> None:
    """One worker over NCCL: no bus, no network under the roofline, and where the step stands."""
    told = document(ways={"nccl": (8e-6, 1.2e12)}, workers=1)
    machine = told["jobs"][0]
    machine["copies"].append({"name": "GPU memory", "bytes": 2**26, "seconds": [2**26 / 1.25e12] * 3, "reason": None})
    latency = {"eager_s": 4e-6, "host_s": 3.5e-6, "graph_s": 1.25e-6, "replay_s": 6e-6}
    step = step_roofline(
        step_s=400e-6, widths=(15, 38, 197), batch=75, launches=80, launch_each_s=4e-6, bytes_per_s=2.5e12,
        flop_per_s=5e13,
    )  # fmt: skip
    machine |= {"launch": latency, "step_roofline": step}
    network = analyze(told)
    said = text(network, told)

    assert network["roofline"] is not None
    assert network["roofline"]["memory_bytes_per_s"] == pytest.approx(2.5e12), "that of the GPU, read and written"
    assert (network["roofline"]["network_flop_per_byte"], network["roofline"]["networks"]) == (None, [])
    assert "# 1 worker: 1 on node1" in said
    words = " ".join(said.split())
    assert "launch of a kernel, one by one 4.00 us" in words and "replay of a graph 6.00 us" in words
    assert "80 launches 320.0 us" in words and "13.7 MB of memory 5.48 us" in words and "159 MFLOP 3.18 us" in words
    golden.line(said, "the whole step", "80 %")
    assert restored(json.loads(json.dumps(finite(network))), source="x")["launch"] == latency
    paths = write_bench(network, told, tmp_path)
    assert {path.name for path in paths} >= {"roofline.pdf", "network.pdf", "bench.json"}


def test_worker_counts(golden: Golden) -> None:
    assert worker_count(None, 4) == 4
    assert worker_count(2, 4) == 2
    with pytest.raises(ConfigError) as caught:
        worker_count(None, 1)
    golden(str(caught.value), "1 core", "2 workers")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--transport", "mpy"],
            "bench: --transport is 'mpy' (did you mean 'mpi'?); allowed: mpi, gloo, nccl",
        ),
        (["--runtime", "horovod/mpii"], "bench: --runtime is 'horovod/mpii' (did you mean 'horovod/mpi'?)"),
        (
            ["--runtime", "ps/mpi"],
            "bench: --runtime is 'ps/mpi' (did you mean 'mpi/mpi'?); allowed: ",
        ),
        (["--transport", "--runtime"], "bench: neither a transport nor a runtime is left to measure; name one"),
        (["--workers", "1"], "bench: --workers is 1; it must be at least 2"),
        (["--workers", "100000"], "bench: --workers is 100000, but this machine offers "),
        (["--sizes", "6"], "bench: size 6 bytes; sizes are multiples of 4 bytes (32-bit floats), at least 4"),
        (["--sizes", "4k5"], "bench: --sizes is '4k5'; sizes are whole numbers of bytes such as 4, 64K, 1M or 1G"),
        (["--max-bytes", "2"], "bench: --min-bytes is 4 and --max-bytes 2; min-bytes must be the smaller one"),
        (["--factor", "1"], "bench: --factor is 1; it must be at least 2"),
        (["--seconds", "0"], "bench: --seconds is 0.0; it must be at least 0.001"),
        (["--rounds", "0"], "bench: --rounds is 0; it must be at least 1"),
        (["--batch", "0"], "bench: batch is 0; it must be at least 1"),
        (["--widths", "1-2"], "bench: widths is '1-2'; it must be three whole numbers"),
        (["--wokers", "2"], "horovod-study bench: unknown argument '--wokers' (did you mean '--workers'?)"),
        (["lodaing"], "horovod-study bench: 'lodaing' is not known (did you mean 'loading'?)"),
    ],
)
def test_wrong_use_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert cli.main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


def fake_ranks(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def run_ranks(module: str, runtime: str, workers: int, folder: Path, content: Any, **_: Any) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(content))
        if runtime == failing:
            raise StudyError(f"{runtime} with {workers} workers failed: no such library; see output.log")
        answered: dict[str, Any] = document()["jobs"][0]
        return answered

    monkeypatch.setattr("horovod_study.studies.bench.run_ranks", run_ranks)


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_may_fail_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: bool, golden: Golden
) -> None:
    fake_ranks(monkeypatch, "horovod/mpi")
    jobs = [BenchJob(runtime=name, asked=asked) for name in ("horovod/mpi", "ddp/gloo")]
    plan = {"sizes": (4,), "seconds": 1.0, "rounds": 1, "batch": 75, "widths": "15-38-197"}
    kept: list[str] = []

    def start() -> dict[str, Any]:
        return run_bench(jobs, plan, MODEL, tmp_path, workers=2, on_progress=lambda text: None, keep=kept.append)

    reason = "horovod/mpi with 2 workers failed: no such library; see output.log"
    if asked:
        with pytest.raises(StudyError) as caught:
            start()
        assert str(caught.value) == reason
        return
    found = start()
    assert len(found["jobs"]) == 1
    golden(found["unavailable"], "horovod/mpi", reason, "nccl", "GPU")
    golden(kept, "horovod/mpi", reason)
    written = json.loads((tmp_path / "jobs" / "ddp-gloo" / "plan.json").read_text())
    assert written["plan"]["machine"] is True  # the first that works measures the machine
    assert (written["config"]["backend"], written["config"]["transport"]) == ("ddp", "gloo")


def test_nothing_measured_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Golden) -> None:
    fake_ranks(monkeypatch, "ddp/gloo")
    plan = {"sizes": (4,), "seconds": 1.0, "rounds": 1, "batch": 75, "widths": "15-38-197"}
    jobs = [BenchJob(runtime="ddp/gloo", asked=False)]
    with pytest.raises(StudyError) as caught:
        run_bench(jobs, plan, MODEL, tmp_path, workers=2, on_progress=lambda text: None, keep=lambda text: None)
    golden(str(caught.value), "ddp/gloo", "2 workers")


# ----------------------------------------------------------------------------------------------------- report


def test_the_table_has_the_layout_of_nccl_tests(golden: Golden) -> None:
    table = allreduce_table(analyze(document(workers=4, wrong=2)), "mpi").split("\n")

    golden(table[0], "MPI")
    assert table[2].split() == ["#", "size", "count", "type", "redop", *["time", "algbw", "busbw", "#wrong"] * 2]
    assert table[3].split() == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    first, flat = table[4].split(), next(line for line in table if "613764" in line).split()
    assert first == ["4", "1", "float", "sum", "2.00", "0.00", "0.00", "0", "2.00", "0.00", "0.00", "2"]
    # 2 us + 613,764 B / 6 GB/s = 104.3 us; algbw 5.88 GB/s; busbw with 4 workers 1.5 times that
    assert flat[:8] == ["613764", "153441", "float", "sum", "104.3", "5.88", "8.83", "0"]
    assert flat[-2:] == ["all", "gradients"]
    assert table[-1] == "# barrier 2.00 us (1.00 - 3.00)"


def test_the_text_says_what_was_found(golden: Golden) -> None:
    made = document()
    said = text(analyze(made), made)

    golden.line(said, "2 workers", "node1", "CPU", "8 cores", "2026-01-02T03:04:05+00:00", "0.1")
    assert "# all-reduce, Horovod/MPI (horovod/mpi)" in said
    words = " ".join(said.split())
    assert "horovod/mpi 30.00 [30.00, 30.00] 5.00 [5.00, 5.00] 150 kB 0 % 152.8 us, 152.8 us" in words
    assert "matrix peak fp32 100.0 GFLOP/s" in words
    assert "copy, host to device, pinned - (no GPU is visible)" in words
    assert "2.600 ms without communication, 28,846 samples/s, 61.2 GFLOP/s (61 % of the fp32 peak)" in words
    assert "memory 11.9 10.00 10.0 100.0" in words
    golden.line(said, "GPU")


@pytest.mark.slow
def test_files_are_written_alike_each_time(tmp_path: Path) -> None:
    made = document()
    for name in ("first", "second"):
        write_bench(analyze(made), made, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "first").iterdir())

    figures = [f"{name}.{form}" for name in ("network", "roofline") for form in ("csv", "pdf", "png", "svg", "txt")]
    assert names == sorted(["bench.csv", "bench.json", "bench.txt", *figures])
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    kept = json.loads((tmp_path / "first" / "bench.json").read_text())
    assert kept["measured"][0]["conditions"]["ranks"][1] == {"host": "node1", "cores": [1], "threads": 1}
    assert kept["fits"]["mpi"]["half_bytes"] == pytest.approx(12_000)
    assert kept["roofline"]["networks"][0]["way"] == "mpi"
    header = (tmp_path / "first" / "bench.csv").read_text().split("\n")[0]
    assert header.startswith("way,raw,operation,place,bytes,count,workers,of_model,rounds,iterations,seconds_median")


# -------------------------------------------------------------------------------------------------- real ranks

QUICK = ["bench", "--workers", "2", "--sizes", "4", "4K", "--seconds", "0.3", "--rounds", "2", "--json"]


@pytest.mark.horovod
def test_two_ranks_measure_mpi_gloo_and_horovod(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--transport", "mpi", "gloo", "--runtime", "horovod/mpi", "--out", str(tmp_path)]
    code = cli.main([*QUICK, *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)

    assert {point["way"] for point in found["points"]} == {"mpi", "gloo", "horovod/mpi"}
    assert found["wrong"] == 0
    assert set(found["fits"]) == {"mpi", "gloo", "horovod/mpi"}
    for point in found["points"]:
        assert 0 < point["seconds_min"] <= point["seconds_median"] <= point["seconds_max"]
        if point["operation"] == "allreduce":
            assert point["busbw_gb_per_s"] == pytest.approx(point["algbw_gb_per_s"])
    conditions = found["measured"][0]["conditions"]
    assert [len(rank["cores"]) > 0 for rank in conditions["ranks"]] == [True, True]
    assert conditions["settings"]["HOROVOD_CYCLE_TIME"]["source"] in ("shipped", "user")
    assert found["roofline"]["flop_per_s"] > 0
    assert {row["name"]: row["reason"] for row in found["copies"]}["host memory, one worker"] is None
    assert (tmp_path / "roofline.png").stat().st_size > 10_000


@pytest.mark.horovod
def test_a_wrong_transport_is_counted_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "RANK_PROGRAM", "broken_ranks")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    code = cli.main([*QUICK, "--transport", "mpi", "--runtime", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    found = json.loads(captured.out)

    assert code == 1
    wrong = {(p["operation"], p["place"]): p["wrong"] for p in found["points"] if p["bytes"] == 4096}
    # The last of 1024 elements, on each of the two ranks.
    assert wrong == {("allreduce", "out"): 0, ("allreduce", "in"): 2, ("broadcast", "in"): 0}
    assert "doubt: mpi: 2 wrong elements in allreduce in place of 4,096 bytes; do not train over it" in captured.err


@pytest.mark.horovod
def test_a_transport_that_was_asked_for_and_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = cli.main([*QUICK, "--transport", "nccl", "--runtime", "--out", str(tmp_path)])

    assert code == 2
    assert "transport nccl cannot be used here: " in capsys.readouterr().err.splitlines()[-1]
