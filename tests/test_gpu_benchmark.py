"""benchmarks/gpu.sh and what it runs: the whole way on a CPU with tiny sizes, and its rules with played programs.

A dry run goes through all code that does not need the hardware. Verdicts, tables, time limits and failures are held
against results that are made here.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from make.waiting import PATIENCE_S
from make.wording import Golden

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """What benchmarks/gpu.sh consists of, as modules."""
    sys.path.insert(0, str(BENCHMARKS))
    names = ("gpu_table", "gpu", "plain_training", "block_variants", "gpu_steps", "gpu_smoke")
    before = {name: sys.modules.pop(name, None) for name in names}  # scripts/gpu.py has the same name
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@pytest.fixture(scope="module")
def gpu(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["gpu"]


@pytest.fixture(scope="module")
def table(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["gpu_table"]


# ------------------------------------------------------------------------------------------------ the whole way


@pytest.mark.slow
def test_a_dry_run_goes_the_whole_way_and_promises_nothing(tmp_path: Path, golden: Golden) -> None:
    line = [sys.executable, BENCHMARKS / "gpu.py", "--dry-run", "--out", tmp_path, "--only", "smoke|data|step|epochs"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    document = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stderr
    assert {name: each["status"] for name, each in document["sections"].items()} == dict.fromkeys(
        ("smoke", "data", "step", "epochs"), "done"
    ), document["sections"]
    assert document["status"] == "finished" and document["dry_run"] is True
    assert {each["verdict"] for each in document["targets"]} == {"dry run: not judged"}
    assert document["ran"] == list(document["sections"]) and list(document["machines"]) == ["1"]
    for way in document["sections"]["smoke"]["result"]["ways"]:
        assert way["losses"]["largest_difference"] < 1e-5 and min(way["step_s"], way["host_s"], way["light_s"]) > 0
    assert "promises nothing" in page
    golden.line(page, "CPU")
    assert page.strip() in done.stdout
    for batch, each in document["sections"]["step"]["result"]["batches"].items():
        ways = {row["way"]: row for row in each["ways"]}
        assert set(ways) == {"plain loop", "plain loop, DataLoader", "no graphs", "graphs", "graphs bf16"}
        assert all(row["rounds"] == 2 and row["step_s"]["min"] > 0 and row["why"] is None for row in ways.values())
        for name in ("graphs", "no graphs"):
            assert ways[name]["losses"]["largest_difference"] < 1e-5, (batch, name)
        assert 1e-5 < ways["graphs bf16"]["losses"]["largest_difference"] < 0.1
    for each in document["sections"]["epochs"]["result"]["batches"].values():
        ours = next(row for row in each["ways"] if row["way"] == "graphs")
        assert ours["epochs"] == 1 and ours["runs"][0]["laps_ms"]["compute"] > 0
        assert ours["epoch_s"]["median"] < 2 * ours["runs"][0]["window_s"]
        assert ours["times_plain"] is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dry-run"], "benchmarks/results"),
        (["--dry-run", "--out", str(BENCHMARKS / "results" / "x")], ""),
    ],
)
def test_a_dry_run_never_writes_among_the_results(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], message: str, golden: Golden
) -> None:
    assert gpu.main(words) == 2
    golden(capsys.readouterr().err, message)


@pytest.mark.slow
def test_without_a_gpu_nothing_is_measured(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    assert "sees no GPU; run this on a machine with an NVIDIA GPU, or try it with --dry-run --out DIR" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ sections and time


def measured(
    gpu: ModuleType,
    sections: list[Any],
    out: Path,
    *,
    deadline_s: float = 60.0,
    dry: bool = True,
    machine: dict[str, Any] | None = None,
) -> Any:
    machine = MACHINE if machine is None else machine
    return gpu.measure(sections, sizes=gpu.DRY, dry=dry, deadline_s=deadline_s, out=out, machine=machine)


def section(gpu: ModuleType, name: str, measure: Any, *, least_s: float = 0.0, most_s: float = 60.0) -> Any:
    return gpu.Section(name=name, part="limits", measure=measure, least_s=least_s, most_s=most_s)


MACHINE: dict[str, Any] = {
    **dict.fromkeys(("host", "cpu_model", "cores_usable", "python", "torch", "numpy", "horovod", "revision"), "x"),
    "load_1min": 0.5,
    "horovod_builds": [],
    "pytorch": {"not_fused": "none here"},
    "nvidia_smi": dict.fromkeys(("driver_version", "power.limit", "clocks.max.sm"), "1"),
}


def test_a_failing_section_costs_no_other(gpu: ModuleType, tmp_path: Path, golden: Golden) -> None:
    def broken(work: Any) -> dict[str, Any]:
        raise KeyError("no such thing")

    def refusing(work: Any) -> dict[str, Any]:
        gpu.run_program([sys.executable, "-c", "raise SystemExit('error: it went wrong')"], work, what="the program")
        return {}

    seen: list[dict[str, Any]] = []

    def last(work: Any) -> dict[str, Any]:
        seen.append(json.loads((tmp_path / "gpu.json").read_text()))  # what a cut would leave here
        return {"made": 1.5, "unknown": float("nan")}

    names = ("broken", "refusing", "last")
    document = measured(
        gpu, [section(gpu, *each) for each in zip(names, (broken, refusing, last), strict=True)], tmp_path
    )

    assert [each["status"] for each in document["sections"].values()] == ["failed", "failed", "done"]
    assert document["sections"]["broken"]["why"] == "KeyError: 'no such thing'"
    golden(document["sections"]["refusing"]["why"], "code 1")
    assert seen[0]["status"] == "unfinished" and list(seen[0]["sections"]) == ["broken", "refusing"]
    assert json.loads((tmp_path / "gpu.json").read_text())["sections"]["last"]["result"] == {
        "made": 1.5,
        "unknown": None,
    }
    row = next(line for line in (tmp_path / "gpu.md").read_text().splitlines() if "refusing" in line)
    assert row.startswith("| limits | refusing | failed | 0 |") and "the program ended" in row


def test_a_part_replaces_its_own_sections_and_says_on_what_it_was_measured(gpu: ModuleType, tmp_path: Path) -> None:
    def gives(value: int) -> Any:
        return lambda work: {"value": value, "known": sorted(work.found)}

    def value(name: str) -> Any:
        return document["sections"][name]["result"]["value"], document["sections"][name]["machine"]

    measured(gpu, [section(gpu, "data", gives(1)), section(gpu, "kept", gives(2))], tmp_path)
    document = measured(gpu, [section(gpu, "kept", gives(3)), section(gpu, "other", gives(4))], tmp_path)
    assert (value("data"), value("kept"), value("other")) == ((1, "1"), (3, "1"), (4, "1"))
    assert list(document["sections"]) == ["data", "kept", "other"] and document["ran"] == ["kept", "other"]
    assert "Not all sections" not in (tmp_path / "gpu.md").read_text()

    other = {**MACHINE, "revision": "y", "load_1min": 7.0}
    sections = [section(gpu, "data", gives(5)), section(gpu, "kept", gives(6))]
    document = measured(gpu, sections, tmp_path, machine=other)
    assert (value("data"), value("kept")) == ((5, "2"), (6, "2")) and list(document["machines"]) == ["1", "2"]
    assert document["sections"]["kept"]["result"]["known"] == ["data"], "what another machine has found is not used"
    assert "Not all sections were measured on the same machine" in (tmp_path / "gpu.md").read_text()
    measured(gpu, [section(gpu, "other", gives(6))], tmp_path / "elsewhere")
    assert gpu.main(["--add", str(tmp_path / "elsewhere" / "gpu.json"), "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert (value("data"), value("kept"), value("other")) == ((5, "2"), (6, "2"), (6, "1"))

    measured(gpu, [section(gpu, "data", gives(7))], tmp_path, dry=False)
    document = measured(gpu, [section(gpu, "data", gives(8), least_s=99)], tmp_path, dry=False)
    assert list(document["sections"]) == ["data"], "a dry run is never beside results"
    assert value("data") == (7, "1"), "what had no time left replaces nothing"


def test_limits_add_up_to_the_time_there_is(gpu: ModuleType) -> None:
    for part in gpu.PARTS:
        sections = [each for each in gpu.SECTIONS if each.part == part]
        assert sum(each.most_s for each in sections) <= 490, "of 530 s, with the start and the description"
        for deadline_s in (600.0, 240.0):
            left_s = deadline_s
            for place in range(len(sections)):
                limit_s = gpu.limit_of(sections[place:], left_s)
                most_s = sections[place].most_s
                assert min(left_s, sections[place].least_s) <= limit_s <= most_s
                share_s = deadline_s * most_s / sum(each.most_s for each in sections)
                assert limit_s <= max(share_s, sections[place].least_s) or place, (
                    "the first takes no more than its share"
                )
                left_s -= limit_s
            assert left_s >= 0 and (deadline_s == 240.0 or limit_s == sections[-1].most_s)


def test_several_gpus_have_a_section_of_their_own(gpu: ModuleType) -> None:
    one, four = ([each.name for each in gpu.sections_of("horovod", "", gpus=count)] for count in (1, 4))

    assert four == [*one, "scaling"] and "scaling" not in one


@pytest.mark.slow
def test_a_dry_run_plays_two_gpus(tmp_path: Path) -> None:
    line = [sys.executable, BENCHMARKS / "gpu.py", "--dry-run", "--out", tmp_path, "--only", "scaling"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["sections"]["scaling"]

    assert done.returncode == 0 and found["status"] == "done", found["why"]
    assert {(row["way"], row["workers"]) for row in found["result"]["runs"]} == {("one worker", 1), ("torch DDP", 2)}
    assert found["result"]["missing"] == [] and found["result"]["exchange"][0]["seconds"] > 0


def test_what_has_no_time_left_is_not_begun(gpu: ModuleType, tmp_path: Path, golden: Golden) -> None:
    begun = []

    def spends(work: Any) -> dict[str, Any]:
        begun.append(work.left_s)
        return {}

    sections = [
        section(gpu, "long", spends, least_s=30, most_s=200),
        section(gpu, "short", spends, least_s=1, most_s=5),
    ]
    document = measured(gpu, sections, tmp_path, deadline_s=20 + gpu.RESERVE_S, dry=False)

    assert document["sections"]["long"]["status"] == "not run"
    golden(document["sections"]["long"]["why"], "20 s", "30 s")
    assert document["sections"]["short"]["status"] == "done"
    assert len(begun) == 1 and 4 < begun[0] <= 5, "a section gets what it needs at most"


def test_a_program_that_never_ends_is_ended_with_all_it_started(
    gpu: ModuleType, tmp_path: Path, golden: Golden
) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )

    def endless(work: Any) -> dict[str, Any]:
        gpu.run_program([sys.executable, "-c", program], work, what="it")
        return {}

    document = measured(gpu, [section(gpu, "endless", endless, most_s=1.5)], tmp_path, dry=False)
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):  # until init has taken it
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.1)

    golden(document["sections"]["endless"]["why"])
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


def work_of(gpu: ModuleType, folder: Path, seconds: float = 30.0) -> Any:
    return gpu.Work(
        sizes=gpu.DRY,
        dry=True,
        folder=folder,
        environ=dict(os.environ),
        ends_at=gpu.now() + seconds,
        fused=False,
        gpus=1,
        found={},
    )


PLAYED = """
import json, sys
plan = json.loads(open(sys.argv[1]).read())
def say(**line): print(json.dumps({"says": line.pop("says"), **line}), flush=True)
say(says="order", batch=75, steps_per_epoch=10, losses=[1.0, 0.5])
for name in ("plain loop", "bad", "graphs"):
    if [name, 75] in plan["without"]:
        continue
    say(says="begins", way=name, batch=75)
    if name == "bad":
        sys.stderr.write("CUDA error: an illegal memory access was encountered\\n")
        sys.exit(3)
    say(says="losses", way=name, batch=75, losses=[1.0, 0.5], opened_s=0.1)
    say(says="block", way=name, batch=75, round=0, steps=2, seconds=0.2 if name == "plain loop" else 0.01)
"""


def test_a_way_that_breaks_its_process_is_named_and_the_others_go_on(
    gpu: ModuleType, table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu_steps.py").write_text(PLAYED)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    found = table.steps(gpu.in_turns({"what": "steps"}, work_of(gpu, tmp_path)))
    ways = {row["way"]: row for row in found["batches"]["75"]["ways"]}

    assert "illegal memory access" in ways["bad"]["why"] and ways["bad"]["step_s"] is None
    assert ways["plain loop"]["rounds"] == 2, "of both processes"
    assert ways["graphs"]["times_plain"]["median"] == pytest.approx(20), "within the second process"
    assert ways["graphs"]["epoch_s"]["median"] == pytest.approx(0.05)


def test_a_process_that_crashes_when_all_is_measured_is_not_started_again(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu_steps.py").write_text(
        PLAYED.replace('if name == "bad":', 'say(says="done")\n    if name == "bad":')
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    said = gpu.in_turns({"what": "steps"}, work_of(gpu, tmp_path))

    assert [line["way"] for line in said if line["says"] == "begins"] == ["plain loop", "bad"]
    assert not any(line["says"] == "failed" for line in said)


def test_what_was_found_before_the_time_was_over_counts(
    gpu: ModuleType, table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    endless = PLAYED.replace("sys.exit(3)", "import time; time.sleep(60)")
    (tmp_path / "gpu_steps.py").write_text(endless)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    found = table.steps(gpu.in_turns({"what": "steps"}, work_of(gpu, tmp_path, seconds=2.0)))

    assert found["batches"]["75"]["ways"][0]["step_s"]["median"] == pytest.approx(0.1)
    golden(found["notes"])


def test_a_process_that_says_nothing_fails_the_section(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "gpu_steps.py").write_text("raise SystemExit('error: no data')")
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    with golden.raises(gpu.Failed, match="code 1"):
        gpu.in_turns({"what": "steps"}, work_of(gpu, tmp_path))


TESTS = """
import json, os, sys
plan = json.loads(open(sys.argv[1]).read())
def say(**line): print(json.dumps(line), flush=True)
def ended(name, outcome): say(says="test", name=name, outcome=outcome, seconds=1.0, why=outcome)
if plan["share"][1] > 1:
    say(says="tests", names=["a", "b", "c", "d"])
    ended("a", "passed"); ended("b", "failed")
    sys.stderr.write("CUDA error: an illegal memory access was encountered\\n"); sys.exit(3)
say(says="tests", names=plan["what"])
if plan["what"] != ["c"]:
    ended(plan["what"][0], "failed" if plan["what"] == ["b"] else "passed")
"""


def test_a_test_that_failed_beside_others_is_tried_alone(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu_tests.py").write_text(TESTS)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu.environment, "affinity", lambda: list(range(4)))
    found = gpu.measure_correctness(work_of(gpu, tmp_path))

    assert (found["passed"], found["failed"], found["skipped"]) == (2, 2, 0)
    assert found["passed_alone"] == ["d"] and {each["test"] for each in found["failures"]} == {"b", "c"}


def test_the_tests_of_a_share_are_told_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import warnings, pytest\npytestmark = getattr(pytest.mark, 'gpu')\n"
        "def test_a(): warnings.warn('old')\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no such GPU')\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_d(n): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\nfilterwarnings =\n    error\n")
    (tmp_path / "test_a.py").write_text("def test_unmarked(): pass\n")
    (tmp_path / "plan.json").write_text(json.dumps({"what": ["test_a.py", "test_it.py"], "share": [0, 2]}))
    line = [sys.executable, BENCHMARKS / "gpu_tests.py", tmp_path / "plan.json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    said = [json.loads(each) for each in done.stdout.splitlines()]

    assert said[0]["names"] == ["test_it.py::test_a", "test_it.py::test_c", "test_it.py::test_d[2]"]
    assert [each["outcome"] for each in said[1:]] == ["passed", "skipped", "passed"], done.stderr
    assert "no such GPU" in said[2]["why"] and all(each["seconds"] >= 0 for each in said[1:])


# ------------------------------------------------------------------------------------------------ numbers and verdicts


def rows(way: str, batch: int, seconds: list[float], *, losses: list[float | None]) -> list[dict[str, Any]]:
    named = {"way": way, "batch": batch}
    return [
        {"says": "losses", **named, "losses": losses, "opened_s": 1.0},
        *(
            {"says": "block", **named, "round": number, "steps": 10, "seconds": 10 * value}
            for number, value in enumerate(seconds)
        ),
    ]


def test_ratios_are_taken_within_a_round(table: ModuleType) -> None:
    said = [
        {"says": "order", "batch": 75, "steps_per_epoch": 10_000, "losses": [4.0, 2.0]},
        *rows("plain loop", 75, [1e-3, 2e-3, 3e-3], losses=[4.0, 2.0]),
        *rows("fused", 75, [1e-4, 1e-4, 1e-4], losses=[4.0, 2.0001]),
    ]
    plain, fused = table.steps(said)["batches"]["75"]["ways"]

    assert fused["times_plain"] == pytest.approx({"median": 20, "min": 10, "max": 30})
    assert fused["epoch_s"]["median"] == pytest.approx(1.0)
    assert fused["losses"] == {
        "steps": 2, "largest_difference": pytest.approx(5e-5), "at_step": 1, "first": 4.0, "last": 2.0001
    }  # fmt: skip
    assert plain["times_plain"]["median"] == 1


def test_a_loss_that_is_no_number_is_no_small_difference(table: ModuleType) -> None:
    said = [
        {"says": "order", "batch": 75, "steps_per_epoch": 10, "losses": [4.0, 2.0]},
        *rows("fused", 75, [1e-4], losses=[4.0, None]),
    ]
    document = {**good_document(table), "dry_run": False}
    document["sections"]["step"]["result"] = table.steps(said)

    assert table.steps(said)["batches"]["75"]["ways"][0]["losses"]["largest_difference"] is None
    verdict = next(each for each in table.targets(document) if each["name"].startswith("losses"))
    assert verdict["verdict"] == "missed" and "not finite" in verdict["found"]


def scaled(way: str, workers: int, number: int, rate: float) -> dict[str, Any]:
    """A run of section scaling."""
    times = {"step_ms_median": 0.1, "laps_ms": {"sync": None if workers == 1 else 0.02}, "test_mse": 0.1}
    path = "" if workers == 1 else "nvlink/p2p"
    return {"way": way, "workers": workers, "round": number, "samples_per_s": rate, "path": path, **times}


def good_document(table: ModuleType) -> dict[str, Any]:
    """Results in which everything is met."""
    epochs: list[dict[str, Any]] = []
    for batch, plain_s, ours_s in ((75, 9.0, 0.6), (1024, 2.0, 0.15)):
        for number in range(3):
            named = {"batch": batch, "round": number, "says": "epochs"}
            epochs.append({**named, "way": "plain loop", "epoch_s": [plain_s]})
            run = {"window_s": ours_s, "steps": 9, "samples_per_s": 1e6, "test_mse": 0.1, "laps_ms": {}}
            epochs.append(
                {**named, **run, "way": "fused", "epoch_s": [ours_s] * 3, "step_ms_median": 0.06, "step_ms_p90": 0.07}
            )
    said = [
        {"says": "order", "batch": 75, "steps_per_epoch": 10_000, "losses": [4.0, 2.0]},
        *rows("plain loop", 75, [1e-3, 1e-3], losses=[4.0, 2.0]),
        *rows("fused", 75, [5e-5, 5e-5], losses=[4.0, 2.0]),
    ]
    light = {"way": "light", "percent": 0.4, "low": 0.3, "high": 0.5}
    suite = [{"says": "test", "name": name, "outcome": "passed", "seconds": 1.0, "why": ""} for name in "ab"]
    results: dict[str, Any] = {
        "correctness": table.tests(suite),
        "step": table.steps(said),
        "epochs": table.epochs(epochs),
        "timers": {"cases": [{"batch": 75, "rounds": 99, "control": {**light, "way": "control"}, "variants": [light]}]},
        "exchange": {
            "runs": [
                {"way": "ddp/nccl", "bytes": 613_764, "seconds": 2e-5, "why": None},
                {"way": "horovod/nccl", "bytes": 613_764, "seconds": 5.5e-5, "why": None},
            ]
        },
        "workers": {
            "batch": 75,
            "runs": [
                {"through": "mpi4py, staged", "workers": 2, "samples_per_s": None, "why": "no mpirun"},
                {
                    "through": "Gloo",
                    "workers": 2,
                    "samples_per_s": 9.0,
                    "why": None,
                    "step_ms_median": 1.0,
                    "laps_ms": {},
                },
            ],
        },
        "scaling": {
            "batch": 75,
            "runs": [
                *(scaled("one worker", 1, number, rate) for number, rate in enumerate((1000.0, 500.0, 2000.0))),
                *(scaled("torch DDP", 4, number, rate) for number, rate in enumerate((3000.0, 1600.0, 5000.0))),
            ],
            "missing": [{"way": "Horovod", "workers": 4, "why": "no build"}],
            "exchange": [{"way": "ddp/nccl", "workers": 4, "bytes": 600_000, "seconds": 3e-5, "why": None}],
        },
        "energy": {
            "runs": [
                {
                    "batch": 75,
                    "epochs": 2.5,
                    "counter_per_epoch_j": 210.0,
                    "integral_per_epoch_j": None,
                    "doubt": "",
                    "reason": "no power reading",
                }
            ]
        },
        "waits": {"runs": [{"steps": "captured", "places": 0, "first": []}]},
    }
    return {
        "measured": "2026-01-01T00:00:00+00:00",
        "status": "finished",
        "dry_run": False,
        "machines": {"1": MACHINE},
        "ran": list(results),
        "sections": {
            name: {
                "part": "x",
                "machine": "1",
                "measured": "",
                "status": "done",
                "why": "",
                "seconds": 1.0,
                "result": each,
            }
            for name, each in results.items()
        },
    }


def test_all_is_met_or_the_exit_code_is_one(table: ModuleType) -> None:
    document = good_document(table)
    document["targets"] = table.targets(document)

    assert [each["verdict"] for each in document["targets"]] == ["met"] * 10
    assert table.exit_code(document) == 0


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (lambda found: found["correctness"]["result"].update(failed=1), "tests for a GPU", "missed"),
        (lambda found: found["correctness"]["result"].update(passed=0), "tests for a GPU", "missed"),
        (lambda found: found["waits"]["result"]["runs"][0].update(places=1), "places in the hot loop", "missed"),
        (
            lambda found: found["exchange"]["result"]["runs"][1].update(seconds=6.1e-5),
            "forced exchange of one rank, H",
            "missed",
        ),
        (
            lambda found: found["exchange"]["result"]["runs"][0].update(seconds=None),
            "forced exchange of one rank, N",
            "not measured",
        ),
        (
            lambda found: found["timers"]["result"]["cases"][0]["variants"][0].update(low=1.1, high=1.2),
            "timers",
            "missed",
        ),
        (lambda found: found["timers"]["result"]["cases"][0]["variants"][0].update(high=1.2), "timers", "not measured"),
        (
            lambda found: found["epochs"]["result"]["batches"]["1024"]["ways"][1]["epoch_s"].update(median=0.26),
            "epoch of 750,000 curves, batch 1024",
            "missed",
        ),
        (
            lambda found: found["epochs"]["result"]["batches"]["75"]["ways"][1]["times_plain"].update(median=9.9),
            "times the plain loop beside it, batch 75",
            "missed",
        ),
        (
            lambda found: found["epochs"]["result"]["batches"]["1024"]["ways"][1]["times_plain"].update(median=3.9),
            "times the plain loop beside it, batch 1024",
            "missed",
        ),
    ],
)
def test_a_miss_is_named(table: ModuleType, change: Any, name: str, verdict: str) -> None:
    document = good_document(table)
    change(document["sections"])
    document["targets"] = table.targets(document)
    others = [each for each in document["targets"] if not each["name"].startswith(name)]

    assert [each["verdict"] for each in document["targets"] if each["name"].startswith(name)] == [verdict]
    assert {each["verdict"] for each in others} == {"met"}
    assert table.exit_code(document) == 1
    document["ran"] = ["workers"]
    assert table.exit_code(document) == 0, "the sections of this run decide"


def test_epochs_count_before_blocks_of_steps(table: ModuleType, golden: Golden) -> None:
    document = good_document(table)
    document["sections"]["epochs"]["result"] = None
    found = {each["name"]: each for each in table.targets(document)}

    golden(found["epoch of 750,000 curves, batch 75"]["found"], "0.500 s")
    assert found["epoch of 750,000 curves, batch 1024"]["verdict"] == "not measured"


def test_the_table_holds_what_was_found(table: ModuleType) -> None:
    page = table.markdown(good_document(table))

    for text in (
        "<= 1 s, aim 0.45 s | 0.600 s (0.600 - 0.600; fused, whole epochs) | met |",
        "| fused | 0.600 | 0.600 - 0.600 | 15.00 | 15.00 - 15.00 | 9 | 0.0600 / 0.0700 |",
        "| fused | 50.0 | 50.0 - 50.0 | 0.500 | 20.00 | 20.00 - 20.00 | 0.0e+00 | 2 |  | 1.0 |",
        "| mpi4py, staged | 2 | failed: no mpirun |  |  |",
        "| torch DDP | 4 | 3,000 | 3.00 | 2.50 - 3.20 | 75% | 0.100 | 0.020 | nvlink/p2p | 3 |",
        "| Horovod | 4 | failed: no build |  |  |  |  |  |  |  |",
        "| ddp/nccl | 4 | 600 | 30.0 | 30.00 |",
        "| 75 | 210 | not known | 2.5 | no power reading |",
        "- captured steps: no places",
        "| horovod/nccl | 613,764 | 55.0 |",
    ):
        assert text in page, page
    assert "dry run" not in page


def test_nodes_of_a_replay_are_told_apart_by_name_and_place(modules: dict[str, ModuleType]) -> None:
    smoke, events = modules["gpu_smoke"], []
    for replay in range(6):
        at = 100.0 * replay
        slow = 5.0 if replay < 3 else 0.0  # the first half, in which clocks rise, does not count
        events += [
            {"cat": "kernel", "name": "a", "ts": at + 20, "dur": 10 + slow, "args": {"grid": [2, 1, 1]}},
            {"cat": "kernel", "name": "b", "ts": at + 24, "dur": 3 + slow, "args": {"registers per thread": 32}},
            {"cat": "kernel", "name": "a", "ts": at, "dur": 15 + slow, "args": {}},
            {"cat": "gpu_memcpy", "name": "copy", "ts": at + 33, "dur": 1.0, "args": {}},
            {"cat": "cpu_op", "name": "c", "ts": at, "dur": 50},
        ]
    found = smoke.nodes(events, 6)

    assert [(each["name"], each["us"], each["after_us"]) for each in found] == [
        ("a", 15, 66), ("a", 10, 5), ("b", 3, -6), ("copy", 1, 3)
    ]  # fmt: skip
    assert found[1]["grid"] == [2, 1, 1] and found[2]["registers"] == 32
    assert smoke.nodes(events[1:], 6) == [], "a replay lacks a node"
    row = {"way": "w", "batch": 75, "step_s": 6e-5, "light_s": 6e-5, "host_s": 9e-6, "nodes": found, "opened_s": 1.0}
    result = {"ways": [{**row, "losses": {"largest_difference": 1e-6}}], "adam": [], "notes": []}
    table, document = modules["gpu_table"], {"sections": {"smoke": {"result": result}}}
    assert "| w | 75 | 60.0 | 60.0 | 9.0 | 4 | 29.0 | 1.0e-06 | 1.0 |" in table._smoke_table(document)
    assert "| `a` | 10.00 | 5.00 | [2, 1, 1] |  |  |" in table._node_tables(document)[0]


def test_an_epoch_ends_when_the_device_has_made_it(modules: dict[str, ModuleType]) -> None:
    """Three epochs of 20 steps of 1 s, 3 s between them, and a host that gives a step in a tenth of a second."""
    steps = modules["gpu_steps"]
    warmed_s = 50.0  # after the warm-up, which ends with a pause
    epoch = np.repeat([0, 1, 2], 20)
    begin_s = np.concatenate(
        [np.arange(10) * 0.1, warmed_s + np.arange(10) * 0.1, 63 + np.arange(20) * 0.1, 86 + np.arange(20) * 0.1]
    )
    step_s = np.ones(60)

    assert steps.epoch_seconds(epoch, begin_s, step_s) == pytest.approx([23.0, 23.0])
    step_s[45] = 5.0
    assert steps.epoch_seconds(epoch, begin_s, step_s) == pytest.approx([23.0, 27.0])


@pytest.mark.parametrize(("module", "what"), [("gpu_steps", "measure_steps"), ("gpu_smoke", "prepare")])
def test_what_is_prepared_is_what_is_opened(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, module: str, what: str
) -> None:
    steps, opened = modules["gpu_steps"], []

    class Played:
        def losses(self, order: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(order))

        def ready(self, steps: int) -> None: ...

        make = ready

    def open_way(name: str, resident: Any, plan: Any, tf32: Any, options: Any = None) -> Played:
        opened.append((name, resident.batch, bool(options)))
        return Played()

    monkeypatch.setattr(steps, "open_way", open_way)
    monkeypatch.setattr(steps, "Plain", lambda *_, **__: Played())
    monkeypatch.setattr(
        steps,
        "Resident",
        lambda plan, batch, device: SimpleNamespace(
            batch=batch, per_epoch=9, device=device, order=lambda epoch: torch.zeros(9, batch)
        ),
    )
    plan = {"what": "", "dataset": "", "device": "cpu", "rounds": 1, "seconds": 60.0, "without": [["fused", 1024]]}
    ways = ["fused", "fused tf32", "compile"]
    getattr(modules[module], what)(steps.Plan(**plan, ways=ways, batches=[75, 1024], block_s=1e-3), torch.device("cpu"))

    wanted = {(name, batch, True) for name in ("fused", "fused tf32") for batch in (75, 1024)}
    wanted |= {(name, batch, False) for name in ways for batch in (75, 1024)}
    assert sorted(opened) == sorted(wanted - {("fused", 1024, True), ("fused", 1024, False)})


def test_a_way_that_fails_ends_its_process_on_a_gpu_alone(
    modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, ended = modules["gpu_steps"], []
    monkeypatch.setattr(steps.os, "_exit", ended.append)
    steps.failed("fused", 75, RuntimeError("not captured\nmore"), torch.device("cpu"))
    assert ended == []
    steps.failed("fused", 75, RuntimeError("not captured\nmore"), torch.device("cuda"))

    assert ended == [steps.BROKEN_CONTEXT]
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [{"says": "failed", "way": "fused", "batch": 75, "why": "RuntimeError: not captured"}] * 2


def test_a_results_file_gives_its_table_again(
    gpu: ModuleType, table: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = good_document(table)
    (tmp_path / "gpu.json").write_text(json.dumps(document))

    assert gpu.main(["--table", str(tmp_path / "gpu.json")]) == 0
    assert capsys.readouterr().out == table.markdown(document)


def test_every_way_is_one_that_the_trainer_can_be_asked_for(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod_study.strain import kernels
    from horovod_study.strain.model import StressCNN
    from horovod_study.strain.options import strain_config

    gpu, steps = modules["gpu"], modules["gpu_steps"]
    for options in steps.OURS.values():
        strain_config({"loader": "device", **options}, source="test")
    ways = {name for sizes in (gpu.REAL, gpu.DRY) for name in (*sizes.step_ways, *sizes.epoch_ways, *sizes.smoke_ways)}
    assert ways <= {*steps.OURS, steps.PLAIN, steps.PLAIN_LOADER}
    assert "fused tf32" in gpu.REAL.epoch_ways, "likely the fastest"
    model = StressCNN()
    assert set(gpu.BLOCK_VARIANTS) == set(steps.block_variants(kernels.Sizes.of(model, 75))) - {"fitting"}
    given: list[dict[str, Any]] = []
    monkeypatch.setenv("HOROVOD_STUDY_REPLAY_ON_HOST", "1")
    monkeypatch.setattr(steps, "CapturedStep", lambda config, **rest: given.append({"batch": config.batch, **rest}))
    config = strain_config({"batch": 75, "loader": "device"}, source="test")
    resident = SimpleNamespace(config=config, device=torch.device("cpu"), held=None)
    for name in ("fused, 8 warps", "fused"):
        steps.open_way(name, resident, SimpleNamespace(device="cpu"), steps.Tf32())
    assert set(given[0]["blocks"].warps.values()) == {8} and given[0]["batch"] == 75 and given[1]["blocks"] is None


# ------------------------------------------------------------------------------------------------ gpu.sh

FAKE_PYTHON = """#!/usr/bin/env bash
if [ "$1" = -c ]; then exit {sees_gpu}; fi
echo "{name}$*" >>"{calls}"
case "$*" in *"--horovod yes"*) exit {build};; *"--part tests"*) echo "the table"; exit 1;; esac
"""


def shell(tmp_path: Path, *words: str, sees_gpu: int = 0, build: int = 0, **environ: str) -> tuple[Any, list[str]]:
    """Run a copy of gpu.sh in a folder with programs that only note how they were called."""
    calls = tmp_path / "calls"
    calls.touch()
    for folder in ("benchmarks", "bin", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(BENCHMARKS / "gpu.sh", tmp_path / "benchmarks")
    for place, text in (
        ("bin/python3", FAKE_PYTHON.format(name="", sees_gpu=sees_gpu, calls=calls, build=build)),
        ("bin/nvidia-smi", "#!/usr/bin/env bash\necho a GPU\n"),
        ("bin/nvcc", "#!/usr/bin/env bash\n"),
        (".venv/bin/python", FAKE_PYTHON.format(name="venv ", sees_gpu=1, calls=calls, build=0)),
    ):
        (tmp_path / place).write_text(text)
        (tmp_path / place).chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / "benchmarks" / "gpu.sh", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "OUT": str(tmp_path / "out"), **environ},
    )
    return done, calls.read_text().splitlines()


def test_the_script_measures_all_parts_and_sets_up_for_horovod_alone(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "wheels").mkdir()
    done, calls = shell(tmp_path, WHEELS=str(tmp_path / "wheels"), DEADLINE_S="500")
    wheels = f"--wheels {tmp_path / 'wheels'}"
    parts = [line.split() for line in calls if "--part" in line]

    assert done.returncode == 1, "a part has missed something"
    golden(calls[3], "scripts/setup.py --this-python --site", "--dev", "--horovod", "--builds", wheels)
    assert [line[line.index("--part") + 1] for line in parts] == ["facts", "tests", "targets", "horovod", "limits"]
    assert [line[0] for line in parts] == ["benchmarks/gpu.py"] * 3 + ["venv"] * 2, "what was set up is used then"
    seconds = [int(line[line.index("--deadline-s") + 1]) for line in parts]
    assert 20 <= seconds[0] <= 40 and seconds == sorted(seconds), "what a part leaves is for those that follow"
    assert 400 <= seconds[-1] <= 500
    assert all(line[-2:] == ["--out", str(tmp_path / "out")] for line in parts)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gpu.log"]
    assert "the table" in (tmp_path / "out" / "gpu.log").read_text() and "done, exit code 1" in done.stdout


@pytest.mark.parametrize("part", ["facts", "tests"])
def test_a_part_alone_needs_no_set_up_and_has_all_the_time(tmp_path: Path, part: str) -> None:
    done, calls = shell(tmp_path, "--part", part)

    assert len(calls) == 1 and calls[0].startswith(f"benchmarks/gpu.py --part {part} --deadline-s 5")
    assert done.returncode == (part == "tests")


def test_without_a_build_of_horovod_the_rest_is_measured(tmp_path: Path) -> None:
    done, calls = shell(tmp_path, "--part", "horovod", build=2)

    assert "without Horovod: its set-up failed or did not end in time" in done.stdout
    assert "--builds nccl" in calls[0] and calls[1].startswith("benchmarks/gpu.py --part horovod")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sees_gpu": 1}, "PyTorch"),
        ({"words": ("--part", "all")}, "--part"),
        ({"WHEELS": "/nowhere"}, "WHEELS=/nowhere"),
        ({"PYTHON": "/nowhere"}, "PYTHON=/nowhere"),
        ({"DEADLINE_S": "9 minutes"}, "DEADLINE_S"),
    ],
)
def test_the_script_says_what_is_missing_and_touches_nothing(
    tmp_path: Path, how: dict[str, Any], message: str, golden: Golden
) -> None:
    done, calls = shell(tmp_path, *how.pop("words", ()), **how)

    assert (done.returncode, calls) == (2, [])
    golden(done.stderr, message)
    assert not (tmp_path / "out").exists()


def test_no_time_for_measuring_is_said(tmp_path: Path) -> None:
    done, _ = shell(tmp_path, "--part", "facts", DEADLINE_S="19")

    assert done.returncode == 2
    assert "facts: nothing is left to measure in" in done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", BENCHMARKS / "gpu.sh"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "")
