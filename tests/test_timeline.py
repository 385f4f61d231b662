"""Horovod's timeline: decomposed, told, and recorded for real."""

import copy
import json
import math
import os
import re
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Launch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study import cli, records
from horovod_study.analysis.steps.timeline import PHASES, Timeline, decompose, parse_events
from horovod_study.cli import report
from horovod_study.comm.horovod import kept_mpi
from horovod_study.comm.priority import busiest_thread
from horovod_study.errors import AnalysisError, BackendError, RecordError
from horovod_study.records import finite
from horovod_study.report.terminal import timeline_lines

DATA = Path(__file__).parent / "data"
FLAT = DATA / "timeline-gloo-flat.json"  # train --reduction flat --timeline-steps 5, over Gloo
HOOKS = DATA / "timeline-mpi-hooks-uncached.json"  # --reduction hooks --cache-capacity 0 --timeline-steps 3, over MPI


def read(path: Path) -> Timeline:
    events, doubts = parse_events(path.read_text(encoding="utf-8"), source=path.name)
    return decompose(events, source=path.name, doubts=doubts)


def seconds(found: Timeline) -> dict[str, float]:
    return {name: each["per_step_s"] for name, each in found.together.items()}


def name(pid: int, text: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": text}}


def begin(pid: int, what: str, at: float) -> dict[str, Any]:
    return {"ph": "B", "name": what, "ts": at, "pid": pid}


def end(pid: int, at: float) -> dict[str, Any]:
    return {"ph": "E", "ts": at, "pid": pid}


def ready(pid: int, rank: int, at: float) -> dict[str, Any]:
    return {"ph": "X", "name": str(rank), "ts": at, "pid": pid, "dur": 0}


def allreduce(pid: int, at: float, *, rank_last: int = 1, activity: str = "MPI_ALLREDUCE") -> list[dict[str, Any]]:
    """One collective of 1 ms: 100 us negotiation, 50 queue, 20 rest, 200 copy, 500 operation, 100 copy, 30 rest."""
    return [
        begin(pid, "NEGOTIATE_ALLREDUCE", at),
        ready(pid, 1 - rank_last, at + 1),
        ready(pid, rank_last, at + 99),
        end(pid, at + 100),
        begin(pid, "ALLREDUCE", at + 150),
        begin(pid, "MEMCPY_IN_FUSION_BUFFER", at + 170),
        end(pid, at + 370),
        begin(pid, activity, at + 370),
        end(pid, at + 870),
        begin(pid, "MEMCPY_OUT_FUSION_BUFFER", at + 870),
        end(pid, at + 970),
        end(pid, at + 1000),
    ]


KNOWN = {
    "negotiation": 1e-4,
    "queue": 5e-5,
    "copy": 3e-4,
    "operation": 5e-4,
    "other": 0.0,
    "rest": 5e-5,
}


# ------------------------------------------------------------------------------------------------------ decomposed


def test_one_tensor_of_known_times() -> None:
    events = [name(1, "grad"), *allreduce(1, 0), *allreduce(1, 2000)]
    found = decompose(events, source="made")
    assert (found.steps, found.collectives, found.operations) == (2, 2, {"MPI_ALLREDUCE": 2})
    assert seconds(found) == pytest.approx(KNOWN)
    assert found.busy_s == pytest.approx(1e-3)
    assert found.last_rank == {1: 2}
    assert found.doubts == []
    row = found.table[found.table["activity"] == "MPI_ALLREDUCE"].iloc[0].to_dict()
    assert row == {
        "tensor": "grad",
        "collective": "ALLREDUCE",
        "phase": "operation",
        "activity": "MPI_ALLREDUCE",
        "count": 2,
        "mean_s": pytest.approx(5e-4),
        "median_s": pytest.approx(5e-4),
        "p90_s": pytest.approx(5e-4),
        "total_s": pytest.approx(1e-3),
        "per_step_s": pytest.approx(5e-4),
        "share": pytest.approx(0.5),
    }
    assert list(found.table["phase"].unique()) == ["negotiation", "queue", "copy", "operation", "rest"]


def test_tensors_that_go_together_are_not_counted_twice() -> None:
    names = [name(pid, f"t{pid}") for pid in (1, 2, 3)]
    one_by_one = [allreduce(pid, 0) for pid in (1, 2, 3)]
    merged = sorted((event for events in one_by_one for event in events), key=lambda event: event["ts"])
    found = decompose([*names, *merged], source="made")
    assert seconds(found) == pytest.approx(KNOWN)
    assert (found.steps, found.collectives, found.operations) == (1, 3, {"MPI_ALLREDUCE": 1})
    assert list(found.tensors["tensor"]) == ["t1", "t2", "t3"]
    assert found.tensors["operation_s"].tolist() == pytest.approx([5e-4] * 3)


def test_a_moment_counts_for_the_phase_furthest_on() -> None:
    events = [name(1, "a"), name(2, "b"), *allreduce(1, 0)]
    events += [begin(2, "NEGOTIATE_ALLREDUCE", 500), end(2, 1200), begin(2, "ALLREDUCE", 1200), end(2, 1300)]
    found = decompose(sorted(events, key=lambda event: event.get("ts", -1)), source="made")
    # b negotiates for 700 us, 200 of them alone; then 100 us that belong to no activity.
    assert seconds(found) == pytest.approx({**KNOWN, "negotiation": 3e-4, "rest": 1.5e-4})


def test_an_activity_of_an_unknown_name_keeps_it() -> None:
    found = decompose([name(1, "g"), *allreduce(1, 0, activity="WARP_DRIVE")], source="made")
    row = found.table[found.table["activity"] == "WARP_DRIVE"].iloc[0]
    assert (row["phase"], row["mean_s"]) == ("other", pytest.approx(5e-4))
    assert seconds(found)["other"] == pytest.approx(5e-4)
    assert any(
        line.startswith("other") and line.endswith("(WARP_DRIVE)") for line in timeline_lines(found, source="made")
    )


@pytest.mark.parametrize(
    ("activity", "phase"),
    [
        ("NCCL_ALLREDUCE", "operation"),
        ("GLOO_BCAST", "operation"),
        ("MPI_ADASUM_ALLREDUCE", "operation"),
        ("NCCL_REDUCESCATTER", "operation"),
        ("MPI_CROSS_ALLGATHER", "operation"),
        ("QUEUE", "queue"),
        ("WAIT_FOR_OTHER_TENSOR_DATA", "queue"),
        ("MEMCPY_IN_HOST_BUFFER", "copy"),
        ("COPY_ALLGATHER_OUTPUT", "copy"),
        ("INIT_NCCL", "other"),
        ("ALLOCATE_OUTPUT", "other"),
    ],
)
def test_activities_of_horovod_are_known(activity: str, phase: str) -> None:
    found = decompose([name(1, "g"), *allreduce(1, 0, activity=activity)], source="made")
    assert list(found.table.loc[found.table["activity"] == activity, "phase"]) == [phase]


def test_which_rank_came_last(golden: Golden) -> None:
    events = [name(1, "g"), *allreduce(1, 0), *allreduce(1, 2000, rank_last=0), *allreduce(1, 4000)]
    found = decompose(events, source="made")
    assert found.last_rank == {0: 1, 1: 2}
    golden(timeline_lines(found, source="made")[-1], "Rank 1 announced")


def test_a_barrier_is_listed_but_is_no_collective_that_moves_anything() -> None:
    barrier = [begin(9, "NEGOTIATE_BARRIER", 0), ready(9, 0, 1), ready(9, 1, 80), end(9, 80), end(9, 90)]
    found = decompose([name(9, "barrier.noname"), *barrier, name(1, "g"), *allreduce(1, 200)], source="made")
    assert seconds(found) == pytest.approx(KNOWN)
    assert found.last_rank == {1: 1}
    assert list(found.tensors["tensor"]) == ["g"]
    assert list(found.table["collective"].unique()) == ["ALLREDUCE", "BARRIER"]


def test_what_is_cut_off_is_left_out_and_told(golden: Golden) -> None:
    whole = [name(1, "g"), ready(1, 0, 4), end(1, 5), *allreduce(1, 100)]  # a rank came before the file was open
    found = decompose([*whole, begin(1, "NEGOTIATE_ALLREDUCE", 3000), {"ph": "C", "ts": 1}], source="made")
    assert found.collectives == 1
    golden(found.doubts, "2 events", "1 event", "0.28 does")


def test_a_collective_without_its_negotiation_is_told(golden: Golden) -> None:
    found = decompose([name(1, "g"), *allreduce(1, 0)[4:]], source="made")
    assert seconds(found)["negotiation"] == 0
    golden(found.doubts)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 20_000), st.sampled_from(["MPI_ALLREDUCE", "QUEUE", "X"])),
        min_size=1,
        max_size=8,
    )
)
def test_phases_tile_each_collective_and_the_whole(starts: list[tuple[int, int, str]]) -> None:
    at: dict[int, int] = {}
    events: list[dict[str, Any]] = []
    for pid, gap, activity in starts:
        begins = at.get(pid, 0) + gap
        events += allreduce(pid, begins, activity=activity)
        at[pid] = begins + 1000
    events.sort(key=lambda event: event["ts"])  # stable: those of one tensor stay in order
    before = copy.deepcopy(events)
    found = decompose(events, source="made")
    assert events == before
    assert found.collectives == len(starts)
    assert found.table["total_s"].sum() == pytest.approx(1e-3 * len(starts))
    assert found.table.groupby("tensor")["share"].sum().tolist() == pytest.approx([1.0] * len(at))
    columns = [f"{phase}_s" for phase in PHASES]
    assert (found.tensors[columns].sum(axis=1) * found.tensors["collectives"]).sum() == pytest.approx(
        1e-3 * len(starts)
    )
    spans = sorted((event["ts"], event["ts"] + 1000) for event in events if event.get("name") == "NEGOTIATE_ALLREDUCE")
    union, reached = 0.0, -math.inf
    for first, last in spans:
        union += max(0, last - max(first, reached))
        reached = max(reached, last)
    assert found.busy_s * found.steps == pytest.approx(union / 1e6)


# --------------------------------------------------------------------------------------------------- files of Horovod


def test_one_buffer_over_gloo(golden: Golden) -> None:
    found = read(FLAT)
    assert (found.steps, found.collectives, found.operations) == (5, 5, {"GLOO_ALLREDUCE": 5})
    assert list(found.tensors["tensor"]) == ["allreduce.gradients"]
    assert found.last_rank is None
    golden(timeline_lines(found, source="made"))
    assert found.cycles["count"] == 5
    assert all("end of the file cuts" in doubt for doubt in found.doubts)  # a rank may be late to close it


def test_hooks_over_mpi_without_remembered_negotiations(golden: Golden) -> None:
    found = read(HOOKS)
    assert (found.steps, found.collectives) == (3, 24)
    assert len(found.tensors) == 8
    assert found.operations == {"MPI_ALLREDUCE": 7}
    assert found.last_rank is not None
    assert sum(found.last_rank.values()) == 24
    golden(timeline_lines(found, source="made")[-1], "24")
    shares = finite(found)["together"]
    assert sum(each["share"] for each in shares.values()) == pytest.approx(1)
    assert found.table[found.table["tensor"] == "allreduce.fc1.weight"]["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize("cut", [200, 900, 2000, 2790])
def test_a_truncated_file_is_read_to_where_it_breaks(cut: int, golden: Golden) -> None:
    text = FLAT.read_text(encoding="utf-8")[:cut]
    events, doubts = parse_events(text, source="cut.json")
    golden(doubts[0], len(events))
    everything, none = parse_events(FLAT.read_text(encoding="utf-8"), source="whole.json")
    assert (events, none) == (everything[: len(events)], [])


def test_the_missing_bracket_alone_loses_nothing() -> None:
    text = FLAT.read_text(encoding="utf-8").rstrip().removesuffix("]")
    events, _ = parse_events(text, source="open.json")
    assert events == parse_events(FLAT.read_text(encoding="utf-8"), source="whole.json")[0]


def test_chromes_other_form_is_read() -> None:
    events = json.loads(FLAT.read_text(encoding="utf-8"))
    assert parse_events(json.dumps({"traceEvents": events}), source="chrome.json") == (events, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--timeline-steps 50"),
        ("  \n", "x.json"),
        ("no timeline at all", "x.json"),
        ('{"a": 1}', "x.json"),
        ("[1, 2]", "x.json"),
        ("7", "x.json"),
    ],
)
def test_what_is_no_timeline(text: str, message: str, golden: Golden) -> None:
    with pytest.raises(AnalysisError) as error:
        parse_events(text, source="x.json")
    golden(str(error.value), message)
    assert "\n" not in str(error.value)


def test_a_file_without_collectives_is_refused(golden: Golden) -> None:
    with golden.raises(AnalysisError, match=r"x\.json.*1 event"):
        decompose([name(1, "g")], source="x.json")


# ------------------------------------------------------------------------------------------------------------ told


def test_the_text(golden: Golden) -> None:
    found = decompose([name(1, "grad"), *allreduce(1, 0), *allreduce(1, 2000)], source="made")
    text = timeline_lines(found, source="made.json")
    assert text[:2] == ["made.json", "2 steps, 2 collectives of 1 tensor in 2 operations, 0 cycles"]
    rows = [line.split() for line in text]
    assert ["operation", "0.500", "50.0", "%", "the", "transfer", "(MPI_ALLREDUCE)"] in rows
    golden(text, "under way for 1.000 ms", "30.0\u202f%", "10.0\u202f%", "5.0\u202f%", "1 announced")


def test_many_tensors_are_in_the_table_and_not_in_the_text() -> None:
    pids = range(1, 41)
    events = [name(pid, f"tensor.{pid}" + "x" * 60) for pid in pids] + [e for pid in pids for e in allreduce(pid, pid)]
    found = decompose(events, source="made")
    text = timeline_lines(found, source="made.json")
    assert "timeline.csv" in text[-1] and not any("tensor.7" in line for line in text)
    assert found.table["tensor"].nunique() == 40


@pytest.mark.slow
def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--part", "timeline", str(HOOKS), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "3 steps, 24 collectives of 8 tensors in 7 operations" in printed.out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"timeline.{ending}" for ending in ("csv", "json", "txt")}
    table = pd.read_csv(tmp_path / "out" / "timeline.csv")
    assert table["tensor"].nunique() == 9  # the barrier is one

    assert cli.main(["explain", "--part", "timeline", str(HOOKS), "--out", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["source"], document["steps"]) == (str(HOOKS), 3)
    assert document["last_rank"].keys() == {"0", "1"}


def test_the_verb_says_what_is_doubtful(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    torn = tmp_path / "torn.json"
    torn.write_text(FLAT.read_text(encoding="utf-8")[:2000], encoding="utf-8")
    assert cli.main(["explain", "--part", "timeline", str(torn)]) == 0
    golden(capsys.readouterr().err)
    assert (tmp_path / "timeline" / "timeline.csv").exists()


def test_the_verb_on_what_has_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert cli.main(["explain", "--part", "timeline", str(tmp_path)]) == 2
    golden(capsys.readouterr().err, tmp_path / "timeline.json", "--timeline-steps 50")
    assert cli.main(["explain", "--part", "timeline", str(tmp_path / "nowhere.json")]) == 2
    golden(capsys.readouterr().err, "nowhere.json")


def test_a_timeline_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(report, "TIMELINE_READ_BYTES", 1000)
    with golden.raises(RecordError, match="1,000 bytes"):
        report._read_timeline(FLAT)


# ---------------------------------------------------------------------------------------------------------- for real

RUN = ("--dataset", "400", "--batch", "20", "--steps", "8", "--warmup-steps", "4", "--json")


@pytest.mark.slow
@pytest.mark.horovod
def test_horovod_writes_it_after_the_timed_window_and_training_knows_nothing_of_it(
    launch: Launch, tmp_path: Path
) -> None:
    options = ("--reduction", "hooks", *RUN)
    plain = launch("mpirun", 2, *options, "--out", str(tmp_path / "plain"))
    done = launch("mpirun", 2, *options, "--timeline-steps", "6", "--out", str(tmp_path / "run"))
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert "timeline: 6 scratch steps after the timed window" in done.stderr
    assert "these steps are not the timed ones" in done.stderr
    found = read(tmp_path / "run" / "timeline.json")
    assert (found.steps, len(found.tensors), list(found.operations)) == (6, 8, ["MPI_ALLREDUCE"])
    # Horovod's thread may be about to note the end of the last one when it is told to stop, and another rank may have
    # come to the barrier before the file was open: then that is said.
    edge = re.compile(r"left out: (.* that the end of the file cuts|[1-3] events? of what began before the file)")
    assert [each for each in found.doubts if not edge.fullmatch(each)] == []
    for rank in (0, 1):
        steps = [records.read_steps(tmp_path / run, rank).select(["step", "loss"]) for run in ("plain", "run")]
        assert steps[0].equals(steps[1])
    hashes = {records.read_run(tmp_path / run).totals["parameter_sha256"] for run in ("plain", "run")}
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.horovod
def test_over_gloo_horovod_starts_again_too(launch: Launch, tmp_path: Path) -> None:
    done = launch("horovodrun --gloo", 2, *RUN, "--timeline-steps", "6", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "run" / "timeline.json")
    assert (found.steps, found.operations) == (6, {"GLOO_ALLREDUCE": 6})


def test_a_timeline_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", os.devnull)
    with golden.raises(BackendError, match="HOROVOD_TIMELINE"):
        kept_mpi("gloo")


def test_over_gloo_mpi_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_TIMELINE", raising=False)
    assert kept_mpi("gloo") is None


def test_the_thread_that_computes_is_told_from_those_that_sleep() -> None:
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=stop.wait), threading.Thread(target=compute)]
    for thread in threads:
        thread.start()
    try:
        assert busiest_thread() == threads[1].native_id
    finally:
        stop.set()
        for thread in threads:
            thread.join()
