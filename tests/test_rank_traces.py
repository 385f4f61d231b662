"""Traces of torch.profiler: communication that nothing covers and late ranks, of written traces and of real ones."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.analysis.steps.traces import compare, covered, merged, read_trace, trace_paths
from horovod_study.cli import main
from horovod_study.errors import AnalysisError

REAL = Path(__file__).parent / "data" / "torch_traces"
"""Of two processes over Gloo on one host; rank 1 slept 30 ms before each batch. Operators within others are left out,
and the clock of rank 1 was set 5 s ahead."""
SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda each: (each[0], each[0] + each[1])))


def event(name: str, cat: str, at_ms: float, took_ms: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * at_ms, "dur": 1e3 * took_ms, "args": args}


def on_gpu(rank: int, *, late_ms: float = 0.0, clock_ms: float = 0.0, steps: int = 12) -> dict[str, Any]:
    """Steps of 20 ms: 10 ms of kernels, an all-reduce from 6 ms on that ends at 14 ms on all ranks; 4 ms are bare."""
    events = [{"ph": "M", "name": "process_name"}, event("broken", "kernel", 0, -1)]
    for step in range(steps):
        at = 20.0 * step + clock_ms
        end = at + 14 + (step % 3) / 100
        events += [
            event(f"ProfilerStep#{step}", "user_annotation", at, 20),
            event("aten::linear", "cpu_op", at + 1, 1, **{"Sequence number": 7}),
            event("autograd::engine::evaluate_function: X", "cpu_op", at + 3 + late_ms, 1),
            event("Optimizer.step#SGD.step", "user_annotation", at + 15, 2),
            event("gemm", "kernel", at, 10),
            event("ncclDevKernel_SendRecv(x)", "kernel", at + 5, 0.5),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "kernel", at + 6 + late_ms, end - at - 6 - late_ms),
        ]
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 4}}


def seconds(found: Any, rank: int) -> dict[str, float]:
    return {name: each.value for name, each in found["ranks"][rank]["seconds"].items()}


def test_what_no_kernel_covers_is_exposed_and_clocks_are_compared_at_the_ends_of_collectives() -> None:
    documents = [on_gpu(0), on_gpu(1, clock_ms=3e6), on_gpu(2, late_ms=2.5, clock_ms=-70)]
    found = compare([read_trace(each, source=f"{place}.json") for place, each in enumerate(documents)])
    first, late = seconds(found, 0), seconds(found, 2)

    assert (found["on_gpu"], found["cause"], found["late"]) == (True, "forward", 2)
    assert [each["offset_s"] for each in found["ranks"]] == pytest.approx([0, 3e3, -0.07])
    assert late["late"] == pytest.approx(2.5e-3) and first["late"] == pytest.approx(0, abs=1e-9)
    assert [each["last"] for each in found["ranks"]] == [0, 0, 1]
    expected = {"step": 20, "data": 1, "forward": 2, "backward": 12, "update": 2, "rest": 3, "communication": 8.51}
    assert {name: first[name] * 1e3 for name in expected} == pytest.approx(expected)
    assert first["exposed"] == pytest.approx(4.01e-3) and late["communication"] == pytest.approx(6.01e-3)
    assert found["doubts"] == ["3 of 4 ranks are here: the late one may be another", "left out: 1 event without a time"]


def test_real_traces_of_two_ranks_name_the_one_that_slept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(REAL), "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    slept = found["ranks"][1]

    assert (found["late"], found["cause"], slept["last"], slept["steps"]) == (1, "data", 1.0, 12)
    assert slept["seconds"]["late"]["value"] == pytest.approx(30e-3, rel=0.1)
    assert found["ranks"][0]["seconds"]["exposed"]["value"] > 0.9 * slept["seconds"]["late"]["value"]
    assert "rank_traces.txt" in " ".join(found["files"]) and found["doubts"] == []
    assert "Rank 1 on vm comes 30" in (tmp_path / "rank_traces.txt").read_text()


def test_traces_without_marked_steps_and_those_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    document = on_gpu(0)
    plain = [each for each in document["traceEvents"] if "Profiler" not in each["name"]]
    found = compare([read_trace({"traceEvents": plain}, source="a/rank12.json")])
    assert (found["ranks"][0]["rank"], found["ranks"][0]["steps"], found["late"]) == (12, 12, None)
    plain = [each for each in plain if "Optimizer" not in each["name"]]
    golden(" ".join(compare([read_trace({"traceEvents": plain}, source="1")])["doubts"]))
    two = [read_trace({"traceEvents": plain}, source=name) for name in ("a/rank0.json", "12/trace.json")]
    with golden.raises(AnalysisError):
        compare(two)
    with pytest.raises(AnalysisError, match="both of rank 0"):
        compare([read_trace(document, source="0"), read_trace(document, source="0")])
    for events in ({}, {"traceEvents": []}, {"traceEvents": [3, {"ph": "X"}]}):
        with golden.raises(AnalysisError):
            read_trace(events, source="rank0")
    for name, content in (("a.json.gz", b"no gzip"), ("b.json.gz", gzip.compress(b"{}")[:-9]), ("c.json", b"[]")):
        (tmp_path / name).write_bytes(content)
        assert main(["explain", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err
    (tmp_path / ".ledger.json").write_text('{"schema": 1}')
    assert trace_paths(tmp_path) == [], "a study has files of its own"
    assert [path.name for path in trace_paths(REAL)] == ["rank0.json.gz", "rank1.json.gz"]


@given(SPANS, SPANS)
def test_spans_are_counted_once(spans: Sequence[tuple[int, int]], cover: Sequence[tuple[int, int]]) -> None:
    own, other = merged(spans), merged(cover)
    cells = [{at for a, b in each for at in range(a, b)} for each in (spans, cover)]

    assert float(np.diff(own).sum()) == len(cells[0]) and bool((own[1:, 0] > own[:-1, 1]).all())
    assert covered(other, own).sum() == pytest.approx(len(cells[0] & cells[1]))
