"""Profilers on demand: what they write, what they refuse, and that training knows nothing of them."""

import csv
import gzip
import json
import pstats
import textwrap
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Launch
from make.scratch_job import TwinBackend, job
from make.wording import Golden

from horovod_study import records
from horovod_study.comm.base import SerialBackend
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.errors import StudyError
from horovod_study.strain import profiling
from horovod_study.strain.options import StrainConfig
from horovod_study.train import main

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = ("--dataset", "400", "--batch", "20", "--steps", "12", "--warmup-steps", "3", "--json")


def profiled(directory: Path, kind: str, steps: int = 4, **options: Any) -> list[str]:
    scratch = job(**options)
    before = scratch.fingerprint()
    told = profiling.profile(scratch, kind=kind, steps=steps, directory=directory, timed_step_s=0.001)
    assert scratch.fingerprint() == before
    return told


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def endings(directory: Path) -> set[str]:
    return {path.name.split(".", 1)[1] for path in (directory / "profile").iterdir()}


# ----------------------------------------------------------------------------------------------------- what is written


def test_torch_writes_a_trace_with_the_laps_and_a_table(tmp_path: Path) -> None:
    told = profiled(tmp_path, "torch")
    assert endings(tmp_path) == {"csv", "json.gz"}
    with gzip.open(tmp_path / "profile" / "torch-00000.json.gz", "rt") as stream:
        names = [each.get("name") for each in json.load(stream)["traceEvents"]]
    assert {lap: names.count(lap) for lap in ORDINARY_LAPS} == dict.fromkeys(ORDINARY_LAPS, 4)
    assert all(f"step {step}" in names for step in range(4))
    rows = table(tmp_path / "profile" / "torch-00000.csv")
    assert list(rows[0]) == ["operator", "calls", "calls_per_step", "self_host_s", "total_host_s"]
    by_name = {row["operator"]: row for row in rows}
    assert (by_name["aten::mse_loss"]["calls"], by_name["aten::mse_loss"]["calls_per_step"]) == ("4", "1.0")
    assert [float(row["self_host_s"]) for row in rows] == sorted((float(row["self_host_s"]) for row in rows), reverse=1)
    assert told[0].startswith("profile torch: 4 scratch steps after the timed window, ")
    assert told[0].endswith(" times the 1.00 ms of timed ones; these steps are not the timed ones")
    assert told[1].startswith(f"  wrote {tmp_path / 'profile' / 'torch-00000.csv'} (")
    assert told[1].endswith(" and those of the other ranks")


def test_cprofile_writes_a_table_by_function(tmp_path: Path) -> None:
    profiled(tmp_path, "cprofile")
    assert endings(tmp_path) == {"csv", "prof"}
    rows = {row["function"]: row for row in table(tmp_path / "profile" / "cprofile-00000.csv")}
    assert (rows["train_step"]["calls"], rows["train_step"]["calls_per_step"]) == ("4", "1.0")
    assert rows["train_step"]["file"].endswith("trainer.py")
    assert float(rows["train_step"]["total_s"]) >= float(rows["train_step"]["self_s"]) > 0
    stats = pstats.Stats(str(tmp_path / "profile" / "cprofile-00000.prof"))
    assert "train_step" in {name for _, _, name in stats.stats}  # type: ignore[attr-defined]


def test_sync_points_of_the_own_step_are_none(tmp_path: Path, golden: Golden) -> None:
    told = profiled(tmp_path, "sync-points")
    assert table(tmp_path / "profile" / "sync-points-00000.csv") == []
    head = (tmp_path / "profile" / "sync-points-00000.csv").read_text(encoding="utf-8")
    assert head == "operation,file,line,function,count,per_step,source\n"
    golden(told[1:3], "rank 0", "GPU", "rank 1")


def test_sync_points_name_the_line(tmp_path: Path, golden: Golden) -> None:
    def forward() -> None:
        torch.ones(()).item()

    told = profiled(tmp_path, "sync-points", forward=forward)
    (row,) = table(tmp_path / "profile" / "sync-points-00000.csv")
    line = forward.__code__.co_firstlineno + 1
    assert (row["operation"], row["line"], row["count"], row["per_step"]) == ("item", str(line), "4", "1.0")
    golden(told[1], "rank 0", "1 per", row["file"], line, "torch.ones(()).item(", "GPU")


def test_a_loader_reads_tensors_of_the_host_and_waits_for_nobody(tmp_path: Path, golden: Golden) -> None:
    class Loader:
        def epoch(self, epoch: int, start: int = 0) -> Any:
            order = torch.arange(6).tolist()
            yield from ((torch.ones(2, 3, 4), torch.full((2, 2), float(each))) for each in order)

    scratch = replace(job(), loader=Loader())
    told = profiling.profile(scratch, kind="sync-points", steps=9, directory=tmp_path, timed_step_s=0.001)
    golden(told[1], "rank 0", "GPU")


def test_only_so_many_places_are_told(tmp_path: Path) -> None:
    lines = "\n".join("torch.ones(()).item()" for _ in range(10 + 3))
    program: dict[str, Any] = {"torch": torch}
    exec(f"def forward():\n{textwrap.indent(lines, '    ')}", program)
    told = profiled(tmp_path, "sync-points", forward=program["forward"])
    assert told[10 + 1] == "  rank 0: and 3 more places"
    assert len(table(tmp_path / "profile" / "sync-points-00000.csv")) == 10 + 3


@pytest.mark.slow
def test_pyspy_is_attached_from_outside(tmp_path: Path) -> None:
    def forward() -> None:
        sum(range(300_000))

    profiled(tmp_path, "pyspy", steps=100, forward=forward)
    assert endings(tmp_path) == {"json", "svg"}
    root = xml.etree.ElementTree.parse(tmp_path / "profile" / "pyspy-00000.svg").getroot()
    assert root.tag.endswith("svg")
    stacks = json.loads((tmp_path / "profile" / "pyspy-00000.json").read_text(encoding="utf-8"))
    assert {"forward", "train_step"} <= {each["name"].rsplit(".", 1)[-1] for each in stacks["shared"]["frames"]}


def test_nsys_gets_its_window_and_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """What CUDA is called for, played: there is no GPU here."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    told = profiled(tmp_path, "nsys", steps=1)
    assert calls[:3] == ["start", "step 0", "data"]
    assert calls[-3:] == ["pop", "pop", "stop"]
    golden(told[1], "rank 0")


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_profiler_that_fails_is_a_warning_and_the_steps_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiling, "write_table", full)
    made: list[int] = []
    told = profiled(tmp_path, "cprofile", forward=lambda: made.append(1))
    assert len(made) == profiling.SETTLING_STEPS + 4
    golden(told[1], "rank 0", "28")
    assert not any("wrote /" in line for line in told)


def test_a_py_spy_that_does_not_begin_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Permission denied: cannot attach'\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(profiling, "_spy_program", lambda: str(program))
    told = profiled(tmp_path, "pyspy")
    golden(told[1], "rank 0", "--profile")


def test_an_error_of_the_step_is_not_swallowed(tmp_path: Path) -> None:
    calls: list[int] = []

    def forward() -> None:
        calls.append(1)
        if len(calls) > profiling.SETTLING_STEPS:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        profiled(tmp_path, "sync-points", forward=forward)
    assert torch.ones(1).item() == 1


# ------------------------------------------------------------------------------------------------------------ refusals


def refusal(device: torch.device = CPU, **options: Any) -> str:
    backend = options.pop("on", None) or SerialBackend(StrainConfig(), _launch())
    with pytest.raises(StudyError) as error:
        profiling.require_possible(StrainConfig(**options), backend, device)
    text = str(error.value)
    assert "\n" not in text
    return text


def _launch() -> Any:
    from horovod_study.comm.launch import detect

    return detect({})


def test_what_cannot_work_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    golden(refusal(profile="nsys"), "GPU", "--profile")
    assert refusal(GPU, profile="nsys") == refusal(profile="nsys")
    golden(refusal(profile="sync-points", compile=True))
    golden(refusal(timeline_steps=5), "timeline_steps", "--backend")
    alone = SerialBackend(StrainConfig(), _launch())
    alone.name = "horovod"
    golden(refusal(timeline_steps=5, on=alone), "timeline_steps")


def test_under_nsys_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    profiling.require_possible(StrainConfig(profile="nsys"), TwinBackend(lambda: None), GPU)


def test_without_py_spy(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(profiling, "_spy_program", lambda: None)
    golden(refusal(profile="pyspy"), "horovod_study[probes", "--profile")


def test_a_py_spy_that_may_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Operation not permitted (os error 1)' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(profiling, "_spy_program", lambda: str(program))
    golden(refusal(profile="pyspy"), "--cap-add SYS_PTRACE", "--profile")


def test_py_spy_may_look_here() -> None:
    profiling.require_possible(StrainConfig(profile="pyspy"), TwinBackend(lambda: None), CPU)


def test_a_refusal_comes_before_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main([*SMALL, "--timeline-steps", "3", "--out", str(tmp_path / "run")]) == 2
    golden.line(capsys.readouterr().err, "error", "timeline_steps")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_a_run_learns_the_same_with_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"plain": (), "sync-points": ("--profile", "sync-points"), "ranges": ("--ranges", "itt")}
    hashes, losses = set(), []
    for name, options in runs.items():
        assert main([*SMALL, *options, "--profile-steps", "3", "--out", str(tmp_path / name)]) == 0
        hashes.add(json.loads(capsys.readouterr().out)["parameter_sha256"])
        losses.append(records.read_steps(tmp_path / name, 0).column("loss").to_pylist())
    assert len(hashes) == 1
    assert losses == [losses[0]] * 3
    assert len(losses[0]) == 15, "the profiled steps are no rows"
    assert (tmp_path / "sync-points" / "profile" / "sync-points-00000.csv").exists()


@pytest.mark.slow
@pytest.mark.horovod
def test_each_rank_profiles_itself(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = launch("mpirun", 2, *SMALL, "--profile", "torch", "--profile-steps", "5", "--out", str(out))
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (out / "profile").iterdir())
    assert names == [f"torch-0000{rank}.{ending}" for rank in (0, 1) for ending in ("csv", "json.gz")]
    assert "(median of the slowest rank)" in done.stderr
    for rank in (0, 1):
        rows = {row["operator"]: row for row in table(out / "profile" / f"torch-0000{rank}.csv")}
        assert rows["sync"]["calls"] == "5"
