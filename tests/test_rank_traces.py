"""Traces of torch.profiler: communication that nothing covers and late ranks, of written traces and of real ones."""

import gzip
import json
import re
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
from horovod_study.report.terminal import rank_lines

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


def job(
    rank: int,
    *,
    host_ms: float = 100,
    step_ms: float = 100,
    kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    call: str = "",
    link: str = "",
    extra: bool = False,
    steps: int = 6,
) -> dict[str, Any]:
    """Steps in which the device computes for 60 ms and reduces from 50 to 80 ms; rank 1 begins 5 ms late, ends as late.

    `host_ms`: steps of the host, which may run ahead. `call`: the range that launches the reduction. `link`: the
    argument that names the launch of a kernel. `extra`: odd steps have one kernel more.
    """
    events = []
    for step in range(steps):
        at, device, late = 1000 + host_ms * step, 1000 + step_ms * step, 5.0 * rank
        events += [
            event(f"ProfilerStep#{step + 3}", "user_annotation", at, host_ms),
            event("aten::linear", "cpu_op", at + 0.5, 0.4, **{"Sequence number": 1, "External id": 10 * step + 1}),
            event("Optimizer.step#SGD.step", "user_annotation", at + 8, 1),
        ]
        kernels = [("gemm", device + 1 + late, 60, 1), (kernel, device + 51 + late, 30 - late, 2)]
        if extra and step % 2:
            kernels.append(("relu", device + 2 + late, 1, 3))
        for name, begin, took, place in kernels:
            args = {link: 10 * step + place} if link else {}
            events.append(event(name, "kernel", begin, took, **args))
            if link == "correlation":
                events.append(event("cudaLaunchKernel", "cuda_runtime", at + place, 0.01, **args))
            elif link:
                events.append(event("aten::mm", "cpu_op", at + place, 0.01, **args))
        if call:
            name, _, collective = call.partition("=")
            events.append(event(name, "cpu_op", at + 1.9, 1, **({"Collective name": collective} if collective else {})))
    return {"traceEvents": events}


def answer(documents: Sequence[dict[str, Any]], names: Sequence[str] = ("rank0.json", "rank1.json")) -> dict[str, Any]:
    return compare([read_trace(each, source=name) for each, name in zip(documents, names, strict=True)])


def known(found: dict[str, Any], *columns: str) -> list[list[float]]:
    """Return ms of the columns for each rank."""
    return [[1e3 * each["seconds"][name].value for name in columns] for each in found["ranks"]]


READ = ("step", "communication", "exposed", "late")
RIGHT = [pytest.approx([100, 30, 20, 0], abs=1e-6), pytest.approx([100, 25, 15, 5], abs=1e-6)]


def unknown(found: dict[str, Any], *columns: str) -> bool:
    return bool(np.isnan(known(found, *columns)).all())


def processor_only(call: str, took: float, backend: str, kernels: bool = False) -> list[dict[str, Any]]:
    """Traces whose reductions are ranges of the host alone; with `kernels` others than those of collectives."""
    documents = []
    for rank in (0, 1):
        document = job(rank)
        events = [
            each for each in document["traceEvents"] if each["cat"] != "kernel" or (kernels and "g" in each["name"][0])
        ]
        events += [event(call, "user_annotation", 1003 + 100 * step, took) for step in range(6)] if call else []
        info = {"backend": backend, "rank": rank, "world_size": 2}
        documents.append({"traceEvents": events, "distributedInfo": info})
    return documents


@pytest.mark.parametrize(
    ("call", "backend"),
    [("nccl:all_reduce", "nccl"), ("nccl:all_reduce", "cpu:gloo,cuda:nccl"), ("xccl:allreduce", ""), ("", "nccl")],
)
def test_a_job_on_gpus_without_kernels_has_no_known_communication(call: str, backend: str) -> None:
    found = answer(processor_only(call, 0.04, backend))

    assert unknown(found, *READ[1:]) and known(found, "step") == [[pytest.approx(100)]] * 2 and found["late"] is None
    assert "ProfilerActivity.CUDA" in " ".join(found["doubts"]) and not found["on_gpu"]
    assert "Exposed communication is" not in " ".join(rank_lines(found))
    other = answer(processor_only(call, 0.04, backend, kernels=True))
    assert unknown(other, *READ[1:]) and "no kernel has the name of one" in " ".join(other["doubts"])


def test_ranges_of_gloo_last_as_long_as_the_collective_and_none_is_longer_than_its_step() -> None:
    found = answer(processor_only("gloo:all_reduce", 30, "gloo"))
    assert known(found, *READ) == [pytest.approx([100, 30, 30, 0])] * 2
    broken = answer(processor_only("gloo:all_reduce", 250, "gloo"))
    assert unknown(broken, "communication", "exposed") and "a part of a step" in " ".join(broken["doubts"])
    without = answer(processor_only("", 0, ""))
    assert unknown(without, "communication") and "no communication was found" in " ".join(without["doubts"])


@pytest.mark.parametrize(
    ("link", "extra", "host_ms"),
    [
        ("", False, 10),
        ("correlation", True, 10),
        ("External id", True, 10),
        ("correlation", True, 66),
        ("", False, 100),
    ],
)
def test_kernels_are_of_the_step_that_launched_them_and_the_step_is_that_of_the_device(
    link: str, extra: bool, host_ms: float
) -> None:
    found = answer([job(rank, link=link, extra=extra, host_ms=host_ms) for rank in (0, 1)])

    assert known(found, *READ) == RIGHT and found["late"] == 1
    assert any("runs ahead" in each for each in found["doubts"]) == (host_ms < 100)


@pytest.mark.parametrize(("step_ms", "why"), [(100, "of kernels"), (82, "after the host's last step")])
def test_a_step_that_nothing_ties_to_its_kernels_is_not_known(step_ms: float, why: str) -> None:
    host_ms = 10 if step_ms == 100 else 55
    found = answer([job(rank, extra=True, host_ms=host_ms, step_ms=step_ms, steps=12) for rank in (0, 1)])

    assert unknown(found, *READ) and why in " ".join(found["doubts"])
    alike = answer([job(rank, extra=True) for rank in (0, 1)])
    assert known(alike, *READ) == RIGHT


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("gpu07_4711.1700000000000.pt.trace.json", "gpu07_4712.1700000000001.pt.trace.json"), None),
        (("localhost_0.1700000000000.pt.trace.json", "localhost_1.1700000000001.pt.trace.json.gz"), None),
        (("gpu07_11.json", "gpu12_14.json"), None),
        (("a.json", "b.json"), None),
        (("bert_b32_rank1.json", "bert_b32_rank0.json"), [1, 0]),
        (("h100-rank0.json", "h100-rank1.json"), [0, 1]),
        (("trace_2024-05-01_rank_1.json", "trace_2024-05-02_RANK-7.json"), [1, 7]),
        (("rank3_localrank1.json", "rank2_local_rank0.json"), [3, 2]),
        (("rank0/trace.json", "rank1/trace.json"), [0, 1]),
        (("h100_b32_1.json", "h100_b32_0.json"), [1, 0]),
        (("tp_rank_0_3.json", "tp_rank_0_4.json"), None),
    ],
)
def test_a_number_in_a_name_is_a_rank_where_the_name_says_so(names: Sequence[str], ranks: list[int] | None) -> None:
    found = answer([job(0), job(1)], names)
    rows = sorted(found["ranks"], key=lambda row: names.index(row["source"]))

    assert found["late_file"] == names[1] and found["late"] == (ranks[1] if ranks else None)
    assert [row["rank"] for row in rows] == (ranks or [0, 1]) and found["named"] == (ranks is not None)
    assert any("tell no rank" in each for each in found["doubts"]) == (ranks is None)
    said = " ".join(rank_lines(found))
    assert re.search(r"Exposed communication is largest on .* ms, \d+ % of its step\.", said)
    assert f"{f'Rank {ranks[1]}' if ranks else names[1]} comes 5.0" in said
    told = [{**job(rank), "distributedInfo": {"rank": 5 - rank}} for rank in (0, 1)]
    assert answer(told, names)["late"] == 4


OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}


def test_times_may_be_texts_and_categories_those_of_older_versions(golden: Golden) -> None:
    texts, old = ([job(rank, link="correlation") for rank in (0, 1)] for _ in range(2))
    for each in (each for document in texts for each in document["traceEvents"]):
        each |= {"ts": f"{each['ts']:.3f}", "dur": f"{each['dur']:.3f}"}
        each["args"] = {name: str(value) for name, value in each["args"].items()}
    for each in (each for document in old for each in document["traceEvents"]):
        each["cat"] = OLD[each["cat"]]
    texts[0]["traceEvents"].append(event("gemm", "kernel", 0, 0) | {"ts": "?", "dur": None})
    for documents in (texts, old, [document["traceEvents"] for document in old]):
        assert known(answer(documents), *READ) == RIGHT
    with golden.raises(AnalysisError):
        read_trace({"traceEvents": [event("a", "gpu_op", 0, 1), event("b", "Ascend", 0, 1)]}, source="rank0.json")


@pytest.mark.parametrize(
    ("kernel", "call", "link"),
    [
        ("nccldevkernel_allreduce_sum_f32_ring_ll(x)", "", ""),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "", ""),
        ("oneccl_allreduce_ring", "", ""),
        ("RCCL_ALL_REDUCE", "", ""),
        ("ncclDevKernel_Generic(x)", "nccl:all_reduce", ""),
        ("ncclDevKernel_Generic_1(x)", "record_param_comms=allreduce", "correlation"),
        ("mscclKernel_Sum_float_Simple<a, b>(x)", "c10d::allreduce_", "External id"),
    ],
)
def test_what_a_kernel_does_not_say_its_call_does(kernel: str, call: str, link: str) -> None:
    found = answer([job(rank, kernel=kernel, call=call, link=link, host_ms=20) for rank in (0, 1)])
    assert known(found, *READ) == RIGHT and found["late"] == 1
    alone = answer([job(rank, kernel="ncclDevKernel_Generic(x)") for rank in (0, 1)])
    assert known(alone, *READ[:3]) == [pytest.approx([100, 30, 20]), pytest.approx([100, 25, 15])]
    assert alone["late"] is None and "do not say which ones" in " ".join(alone["doubts"])
    one_way = answer([job(rank, kernel="ncclDevKernel_Broadcast_RING_LL(x)") for rank in (0, 1)])
    assert unknown(one_way, "late")


def test_steps_are_matched_by_their_numbers_and_those_with_another_order_are_not() -> None:
    documents = [job(rank) for rank in (0, 1)]
    for document in documents:
        gather = [event("ncclDevKernel_AllGather_RING_LL(x)", "kernel", 1085 + 100 * step, 5) for step in range(6)]
        document["traceEvents"] += gather
    assert known(answer(documents), "late") == [[pytest.approx(0)], [pytest.approx(2.5)]], "one of two is late"
    first = documents[1]["traceEvents"]
    swapped = next(each for each in first if "AllGather" in each["name"])
    swapped["ts"] -= 60e3
    found = answer(documents)
    assert "1 of 6 steps have other collectives on one rank than on another" in found["doubts"]
    assert known(found, "late")[1] == [pytest.approx(2.5)]
    for each in (each for each in first if each["name"].startswith("ProfilerStep")):
        each["name"] = f"ProfilerStep#{int(each['name'][13:]) + 2}"
    assert known(answer(documents), "late")[1] == [pytest.approx(2.5)]
    assert "late is unknown" not in " ".join(answer(documents)["doubts"])


def test_a_collective_of_a_part_of_the_ranks_tells_nobody_late() -> None:
    documents = [
        job(rank, kernel="ncclDevKernel_Generic(x)", call="record_param_comms=allreduce", link="correlation")
        for rank in (0, 1)
    ]
    for rank, document in enumerate(documents):
        document["distributedInfo"] = {"rank": str(rank), "world_size": "4"}
    assert answer(documents)["late"] == 1
    for each in (
        each for document in documents for each in document["traceEvents"] if each["name"] == "record_param_comms"
    ):
        each["args"]["Group size"] = 2
    assert unknown(answer(documents), "late") and known(answer(documents), "exposed") == [
        [pytest.approx(20)],
        [pytest.approx(15)],
    ]


def test_a_step_without_kernels_has_no_length_and_one_alone_is_the_hosts() -> None:
    documents = [job(rank, link="correlation", host_ms=66) for rank in (0, 1)]
    for document in documents:
        document["traceEvents"].append(event("ProfilerStep#9", "user_annotation", 1000 + 6 * 66, 2))
    assert known(answer(documents), "step") == [[pytest.approx(100)]] * 2
    single = answer([job(rank, link="correlation", host_ms=90, steps=1) for rank in (0, 1)])
    assert known(single, *READ) == [pytest.approx([90, 30, 20, 0]), pytest.approx([90, 25, 15, 5])]
    hidden = answer([job(rank, link="correlation", host_ms=20, steps=1) for rank in (0, 1)])
    assert unknown(hidden, "step") and known(hidden, "exposed") == [[pytest.approx(20)], [pytest.approx(15)]]
    assert "the step is not known: a step of 20 ms with 80 ms of kernels" in " ".join(hidden["doubts"])


def test_labels_of_two_threads_and_of_a_schedule_that_repeats_leave_the_step_as_it_is() -> None:
    twice = [job(rank) for rank in (0, 1)]
    for document in twice:
        labels = [each for each in document["traceEvents"] if each["name"].startswith("ProfilerStep")]
        document["traceEvents"] += [{**each, "tid": 2, "ts": each["ts"] + 3} for each in labels]
    assert [known(answer(twice), *READ), answer(twice)["ranks"][0]["steps"]] == [RIGHT, 6]
    gaps = [job(rank, steps=12, link="correlation") for rank in (0, 1)]
    for document in gaps:
        for each in document["traceEvents"]:
            step = int((each["ts"] - 1e6) // 1e5)
            each["ts"] += 7e5 * (step >= 6)
            if each["name"].startswith("ProfilerStep"):
                each["name"] = f"ProfilerStep#{step + 3 + 7 * (step >= 6)}"
    assert known(answer(gaps), *READ) == RIGHT and answer(gaps)["ranks"][1]["steps"] == 12


def test_begins_and_ends_are_spans_and_a_list_is_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        events = []
        for each in job(rank)["traceEvents"]:
            took, thread = each.pop("dur"), {"pid": 1, "tid": each["cat"] + each["name"]}
            events.append({**each, **thread, "ph": "B"})
            events.append({"ph": "E", "ts": each["ts"] + took, **thread})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(events))
    assert [path.name for path in trace_paths(tmp_path)] == ["rank0.json", "rank1.json"]
    assert known(answer([json.loads(path.read_text()) for path in trace_paths(tmp_path)]), *READ) == RIGHT
    assert main(["explain", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "Rank 1 comes 5.00" in capsys.readouterr().out
