"""NCCL Inspector's records, written here in its format: collectives by size, who is last."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from horovod_study.analysis.steps.traces import inspect, inspector_lines, inspector_paths
from horovod_study.cli import main
from horovod_study.errors import AnalysisError
from horovod_study.report.terminal import inspector_lines as lines

SIZES = (65_536, 4_194_304)
STEPS = 60


def line(
    rank: int,
    number: int,
    micros: int,
    *,
    size: int = SIZES[0],
    kind: str = "AllReduce",
    timing: str | None = "kernel_gpu",
    ranks: int = 4,
    nodes: int = 2,
    group: str = "0x7f8c496ae9f661",
) -> str:
    """One record as inspector_json.cc of NCCL writes it."""
    perf: dict[str, Any] = {"coll": kind, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": micros}
    if timing is not None:
        perf["coll_timing_source"] = timing
    rate = size / max(micros, 1) / 1e3
    perf |= {"coll_algobw_gbs": round(rate, 6), "coll_busbw_gbs": round(rate * 2 * (ranks - 1) / ranks, 6)}
    about = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202 + number,
        "hostname": f"node{rank * nodes // ranks}",
        "pid": 1639453 + rank,
    }
    header = {"id": group, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": nodes}
    return json.dumps({"header": header, "metadata": about, "coll_perf": perf}, separators=(",", ":")) + "\n"


def job(*, late: int = 2, ranks: Sequence[int] = (0, 1, 2, 3), steps: int = STEPS, **more: Any) -> dict[str, str]:
    """Files of a job: in each step a small and a large all-reduce; `late` comes 300 us late to the first."""
    text: dict[str, str] = {}
    for rank in ranks:
        own = [line(rank, 0, 900, size=10**6, kind="Broadcast", **more)]
        for step in range(steps):
            jitter = (step * 7 + rank) % 5
            own.append(line(rank, 2 * step, 100 + jitter + 300 * (rank != late), size=SIZES[0], **more))
            own.append(line(rank, 2 * step + 1, 1000 + jitter, size=SIZES[1], **more))
        text[f"node{rank // 2}-pid{1639453 + rank}.log"] = "".join(own)
    return text


def read(files: dict[str, str]) -> dict[str, Any]:
    return inspect({name: text.encode().splitlines(keepends=True) for name, text in files.items()})


def test_the_rank_with_the_shortest_kernels_came_last_and_its_time_is_the_transfer() -> None:
    found = read(job())
    rows = {(each["kind"], each["bytes"]): each for each in found["sizes"]}
    small, large = rows["AllReduce", SIZES[0]], rows["AllReduce", SIZES[1]]

    assert [each["bytes"] for each in found["sizes"]] == [SIZES[1], SIZES[0], 10**6]
    assert (small["calls"], small["ranks"], large["calls"]) == (STEPS, 4, STEPS)
    assert small["shortest"].value == pytest.approx(102e-6, abs=1e-6) and small["time"].value > 300e-6
    assert small["time"].low <= small["time"].value <= small["time"].high
    assert found["late"] is not None and (found["late"]["rank"], found["late"]["host"]) == (2, "node1")
    assert 0.5 <= found["late"]["last"] <= 0.8 and found["late"]["late"].value == pytest.approx(151.5e-6, rel=0.1)
    assert found["doubts"] == [] and "Rank 2 on node1" in "\n".join(lines(found))
    assert read(job(late=9))["late"] is None


def test_what_is_no_whole_record_is_counted_and_left_out() -> None:
    files = job()
    first, *others = files
    files[first] = files[first][:-40]
    files[others[0]] += '{"header": 3, "coll_perf": {}}\n[]\n{"header":{},"metadata":{},"dump_stats":{}}\n'
    files[others[1]] += line(2, 500, 0) + line(2, 501, 2**63) + json.dumps({"p2p_perf": {"p2p": "Send"}}) + "\n"
    files["node9-pid9.log"] = ""
    found = read(files)

    assert {each["bytes"]: each["calls"] for each in found["sizes"]}[SIZES[1]] == STEPS - 1
    assert found["doubts"][0].startswith("left out: 7 records: cut off") and found["files"] == 5


def test_what_is_missing_is_said() -> None:
    files = job(ranks=(0, 1, 3))
    assert "3 of 4 ranks" in "\n".join(read(files)["doubts"])
    with pytest.raises(AnalysisError, match="both hold rank 0"):
        read({"a.log": line(0, 0, 5), "b.log": line(0, 1, 5)})
    with pytest.raises(AnalysisError, match="no collective was recorded by all ranks"):
        read({"a.log": line(0, 0, 5), "b.log": line(1, 1, 5)})
    with pytest.raises(AnalysisError, match="no collective of several ranks"):
        read({"a.log": line(0, 0, 5, ranks=1, nodes=1)})


def test_groups_of_a_job_are_apart_by_ranks_and_the_latest_rank_of_any_is_named() -> None:
    files = {}
    for rank in range(4):
        pair, place = divmod(rank, 2)
        own = [line(place, each, 50 + 200 * (rank == 3), group=f"0xa{pair}", ranks=2, nodes=1) for each in range(9)]
        files[f"{rank}.log"] = "".join(own) + line(rank, 0, 70)
    found = read(files)

    assert {(each["ranks"], each["calls"]) for each in found["sizes"]} == {(2, 18), (4, 1)}
    assert found["late"] is not None and (found["late"]["communicator"], found["late"]["rank"]) == ("0xa1", 0)


def test_times_of_the_host_are_none_of_kernels() -> None:
    files = job()
    mixed = {name: text + line(rank, 120, 9999, timing="kernel_cpu") for rank, (name, text) in enumerate(files.items())}
    assert read(mixed)["sizes"] == read(files)["sizes"]
    assert "left out: 4 records" in read(mixed)["doubts"][0]
    for timing in ("collective_cpu", None):
        with pytest.raises(AnalysisError, match="REQUIRE_KERNEL_TIMING"):
            read(job(timing=timing))


def test_explain_takes_a_folder_of_inspector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "inspector", tmp_path / "out"
    folder.mkdir()
    for place, (name, text) in enumerate(job().items()):
        packed = gzip.compress(text.encode())
        if place == 0:
            (folder / f"{name}.gz").write_bytes(packed)
        elif place == 1:
            (folder / f"{name}.gz").write_bytes(packed[:-30])
        else:
            (folder / name).write_text(text)
    (folder / "slurm-1.log").write_text("epoch 1\n")
    assert main(["explain", str(folder), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["late"]["rank"] == 2
    assert main(["explain", str(folder), str(tmp_path)]) == 2
    assert "of another kind" in capsys.readouterr().err
    assert any("cut off" in each for each in found["doubts"])
    assert sorted(path.name for path in out.iterdir()) == ["nccl_inspector.json", "nccl_inspector.txt"]
    (folder / "plain.log.gz").write_bytes(b"no gzip")
    assert [path.name for path in inspector_paths(folder / "plain.log.gz")] == []
    assert main(["explain", str(folder / "none-pid3.log")]) == 2
    assert "none-pid3.log" in capsys.readouterr().err
    (folder / "empty-pid3.log").touch()
    assert main(["explain", str(folder / "empty-pid3.log")]) == 2
    assert "no collective of several ranks" in capsys.readouterr().err
    assert b"{" in list(inspector_lines(sorted(folder.glob("*.log.gz"))[1]))


def without(text: str, *fields: str) -> str:
    """The records without these fields."""
    told = [json.loads(each) for each in text.splitlines()]
    for each in told:
        for part in ("header", "metadata", "coll_perf"):
            each[part] = {name: value for name, value in each[part].items() if name not in fields}
    return "".join(json.dumps(each) + "\n" for each in told)


def test_headers_may_lack_the_communicator() -> None:
    whole = read(job())
    for fields, says in ((("id", "nnodes", "hostname"), ["headers have no id"]), (("nnodes",), [])):
        found = read({name: without(text, *fields) for name, text in job().items()})
        assert found["sizes"] == whole["sizes"] and found["late"]["rank"] == 2 and found["late"]["host"] == "node1"
        assert len(found["doubts"]) == len(says) and all(map(str.startswith, found["doubts"], says))
    texts = {
        name: text.replace('"rank":', '"rank": "').replace(',"n_ranks"', '","n_ranks"') for name, text in job().items()
    }
    assert read(texts)["sizes"] == whole["sizes"], "numbers may be texts"


@pytest.mark.parametrize("fields", [("coll_sn",), ("n_ranks", "coll_msg_size_bytes"), ("rank", "id")])
def test_fields_that_are_missing_are_named(fields: Sequence[str]) -> None:
    with pytest.raises(AnalysisError) as raised:
        read({name: without(text, *fields) for name, text in job().items()})
    assert all(field in str(raised.value) for field in fields if field != "id")
    assert "MIN_SIZE_BYTES" not in str(raised.value)


def test_communicators_without_id_are_told_apart_by_their_ranks_or_not_at_all() -> None:
    pair = {
        name: without(text + line(rank % 2, 0, 5, ranks=2, nodes=1), "id")
        for rank, (name, text) in enumerate(job().items())
    }
    with pytest.raises(AnalysisError, match="both hold rank 0 of communicator of 2 ranks"):
        read(pair)
    with pytest.raises(AnalysisError, match="which communicator each is is not known"):
        read({name: without(text + text, "id") for name, text in job().items()})
