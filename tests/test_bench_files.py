"""What other benchmarks print, read as a network: the layouts of nccl-tests and of OSU, and what is no all-reduce."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from make.wording import Golden

from horovod_study import api
from horovod_study.analysis.costs import ERROR_BEYOND, moved_share, rounds
from horovod_study.analysis.importers import benches_of
from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, measured_network
from horovod_study.cli import main
from horovod_study.config.doors import asked
from horovod_study.errors import AnalysisError

SIZES = [8 * 4**k for k in range(13)]
OSU = """# OSU MPI-CUDA Allreduce Latency Test v7.5
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      10.00              9.00             11.00        1000
1024                   12.00             11.00             13.00        1000
1048576              1058.58           1050.00           1060.00         100
$
# OSU MPI Latency Test v5.8
0                       0.80
2097152                 9.99
"""
# Rows as github.com/NVIDIA/nccl-tests prints them, of 16 A100 on two nodes.
ROWS = """
        4096          1024     float     sum      -1    44.54    0.09    0.17      0    43.36    0.09    0.18      0
     1048576        262144     float     sum      -1    85.58   12.25   22.97      0    84.50   12.41   23.27      0
   268435456      67108864     float     sum      -1   3042.7   88.22  165.42      0   3065.9   87.55  164.16    N/A
"""


def printed(n: int, *, hosts: int = 1, alpha_us: float = 20.0, gb_per_s: float = 100.0, **change: str) -> str:
    """What all_reduce_perf prints of n workers whose all-reduce takes alpha + S / beta in place, a tenth more out."""
    device = "#  Rank {0:2} Group  0 Pid {1:6} on {2} device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB"
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 4(factor) agg iters: 1", "# Using devices"]
    lines += [device.format(rank, 900 + rank, f"host{rank * hosts // n}") for rank in range(n)]
    lines += [f"#       size         count      type   redop    root{2 * '     time   algbw   busbw #wrong'}"]
    for size in SIZES:
        groups = ""
        for factor in (1.1, 1.0):
            micros = factor * (alpha_us + size / gb_per_s / 1e3)
            rate = size / micros / 1e3
            groups += f"  {micros:9.3f}  {rate:6.2f}  {rate * 2 * (n - 1) / n:6.2f}      0"
        lines.append(f"{size:12}  {size // 4:12}     float     sum      -1{groups}")
    text = "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.3"]) + "\n"
    for old, new in change.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def test_the_constants_behind_an_output_come_back_whatever_a_launcher_puts_before_its_lines(
    tmp_path: Path, golden: Golden
) -> None:
    text = printed(8)
    prefixed = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    for prefix in ("[prterun-node-123@1,0]<stdout>: ", "[0] "):
        (content,) = benches_of(prefixed.replace("[1,0]<stdout>:", prefix), source="a.txt", gradient_bytes=1e8)
        assert (content["workers"], len(content["measured"][0]["points"])) == (8, 13)
    rows = "".join(line + "\n" for line in text.splitlines() if "Rank" not in line)
    for each, how in ((text, "of the devices listed"), (prefixed, "of the devices"), (rows, "from busbw/algbw")):
        (content,) = benches_of(each, source="a.txt", gradient_bytes=1e8)
        found = measured_network(content, source="a.txt", way=None, size=1e8)
        assert (found.way, found.sweep.workers, found.sweep.nodes, found.overhead_s) == ("nccl", 8, 1, None)
        assert found.link.alpha_s * 3 == pytest.approx(20e-6, rel=0.01)
        assert found.link.bytes_per_s == pytest.approx(100e9 * 2 * 7 / 8, rel=0.01)
        assert how in content["read"]
        golden(content["read"], "13 sizes", "134,217,728 bytes")
    (tmp_path / "a.txt").write_text(text)
    table = api.simulate([8], benches=[tmp_path / "a.txt"], compute_ms=100, batch=32, gradient_mb=100)
    assert table["allreduce_s"].iloc[0] == pytest.approx(1.02e-3, rel=0.01)


def test_real_rows_say_how_many_workers_there_were_and_osu_is_told(tmp_path: Path, capsys, golden: Golden) -> None:
    (content,) = benches_of(ROWS, source="rows", gradient_bytes=1e8)
    assert content["workers"] == 16 and content["points"][-1]["seconds_median"] == 3065.9e-6
    (content,) = benches_of(ROWS, source="rows@2x8", gradient_bytes=1e8)
    assert {rank["host"] for rank in content["measured"][0]["conditions"]["ranks"]} == {"node0", "node1"}
    (tmp_path / "osu.txt").write_text(OSU)
    words = ["--compute-ms", "10", "--batch", "8", "--gradient-mb", "1", "--workers", "8", "--json"]
    assert main(["predict", "--simulate", "--bench", f"{tmp_path}/osu.txt@2x4", *words]) == 0
    told = capsys.readouterr()
    golden(told.err, "osu_allreduce", "8 workers", "2 nodes", "3 sizes", "1,048,576")
    assert json.loads(told.out)
    with golden.raises(AnalysisError, match=r"osu\.txt@4x8"):
        benches_of(OSU, source="osu.txt", gradient_bytes=1e8)


def test_of_several_counts_the_largest_is_used_and_the_others_are_told() -> None:
    scatter = "# Collective test starting: reduce_scatter_perf\n" + printed(2).replace("float", "half")
    both = (
        scatter
        + "# Collective test starting: all_reduce_perf\n"
        + printed(4)
        + printed(4)
        + printed(8, gb_per_s=200.0)
        + printed(16, hosts=2)
    )
    found = [(each, "log") for each in benches_of(both, source="log", gradient_bytes=1e8)]
    assert [each["workers"] for each, _ in found] == [4, 8, 16] and "2 repeats" in found[0][0]["read"]
    kept, doubts = largest_of_each_kind(found)
    assert [each["workers"] for each, _ in kept] == [8, 16]
    assert doubts == ["log: 4 workers, set aside for the 8 of log"]
    others = [each for each in found if each not in kept]
    known = calibrate(asked(Given, {"compute_ms": 1.0, "batch": 1}, "simulate"), benches=kept, further=others)
    assert [each.workers for each in known.network.measured.sweeps] == [8, 16, 4]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (printed(8, sum="none"), ""),
        (printed(8).replace("Rank  1 ", "Rank  0 "), "rank 0.*2 times"),
        (
            printed(8).replace("#  Rank  7", "#  Rank  7 of"),
            r"/.*1\.7.*7 workers.*1\.714",
        ),
        (printed(1), ""),
        (printed(8).replace("time ", "cputime"), ""),
        (ROWS.replace("3065.9", "3.0659"), r"line 4.*268,435,456 bytes.*3\.0659 us.*8\.756e\+04 GB/s"),
        (ROWS.replace("262144", "131072"), "line 3.*131,072 elements.*1,048,576 bytes"),
        ("\n".join(ROWS.splitlines()[2:]), "16 workers.*2 sizes"),
    ],
)
def test_what_is_no_all_reduce_of_several_workers_is_refused_with_its_line(
    text: str, place: str, golden: Golden
) -> None:
    with golden.raises(AnalysisError, match=place or None):
        benches_of(text, source="rows", gradient_bytes=1e8)


def test_wrong_results_and_a_missing_model_are_told(golden: Golden) -> None:
    (content,) = benches_of(ROWS.replace(" 23.27      0", " 23.27      7"), source="rows", gradient_bytes=1e8)
    assert content["wrong"] == 7 and "with wrong results" in content["read"]
    with golden.raises(AnalysisError, match="--gradient-mb"):
        benches_of(ROWS, source="rows")


# ------------------------------------------------------------------------------------- the forms that versions print

NOW = "size count type redop root" + 2 * " time algbw busbw #wrong"
SPREAD = "size count type redop root" + 2 * " time algbw busbw #wrong i_min i_max i_p99 i_cv%"
UNITS = "(B) (elements)" + 2 * " (us) (GB/s) (GB/s)"
ROOTLESS = "size count type redop" + 2 * " time algbw busbw error"
OLD = "bytes N type op" + 2 * " time algbw busbw res"


def as_printed(value: float, width: int) -> str:
    """As nccl-tests prints a number: with as many decimals as there is room for, then as 1.2e+07."""
    texts = (f"{value:.{digits}f}" for digits in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")


def table(n: int, *, us: float = 20.0, gb_per_s: float = 4.0, heads: str = NOW, **form: Any) -> str:
    """A table of an all-reduce of n workers that takes us + S / gb_per_s, in place 1 % more.

    `form`: its `sizes`, `kinds` of (type, bytes, operation), `root`, the `share` busbw / algbw, what is `behind` each
    row and `before` it, the list of devices `above`.
    """
    listed = "".join(f"#  Rank {rank} Group 0 Pid {rank} on host device {rank} [0000:10:00] X1\n" for rank in range(n))
    text = form.get("above", f"# nThread 1 nGpus {n}\n# Using devices\n{listed}") + f"#  {heads}\n"
    if heads != OLD:
        text += f"#  {UNITS}\n"
    share = form.get("share", 2 * (n - 1) / n)
    for size in form.get("sizes", [8 * 8**k for k in range(10)]):
        for kind, width, operation in form.get("kinds", [("float", 4, "sum")]):
            words = [str(size), str(size // width), kind, operation, *([str(form.get("root", -1))] * ("root" in heads))]
            for micros in (us + size / gb_per_s / 1e3, 1.01 * (us + size / gb_per_s / 1e3)):
                rate = size / micros / 1e3
                words.append(f"{micros / 1e3:.3f}" if heads == OLD else as_printed(micros, 7))
                words += [as_printed(rate, 6), as_printed(share * rate, 6), "N/A" if heads == OLD else "0"]
                words += [as_printed(micros * factor, 7) for factor in (0.9, 1.2, 1.1, 0.01)] * ("i_min" in heads)
            text += f"{form.get('before', '')} {'  '.join(words)} {form.get('behind', '')}\n"
    return text + "# Out of bounds values : 0 OK\n"


def taken_s(text: str, size: float = 1e8, *, source: str = "log") -> list[float]:
    """What an all-reduce of `size` bytes takes by each document that a text is read to."""
    found = [
        measured_network(each, source=source, way=None, size=size)
        for each in benches_of(text, source=source, gradient_bytes=size)
    ]
    return [
        float(
            each.link.alpha_s * rounds(each.sweep.workers)
            + moved_share(each.sweep.workers) * size / each.link.bytes_per_s
        )
        for each in found
    ]


DEVICES_1 = "# Using devices\n" + "".join(f"#   Device  {k} ->  {k} [0x0{k}] GeForce GTX TITAN X\n" for k in range(4))
KINDS_1 = [("char", 1, "sum"), ("float", 4, "sum"), ("float", 4, "max"), ("double", 8, "sum")]
FORMS = {
    "timestamps": table(2, heads=f"{NOW} timestamp", behind="2025-03-01 09:08:00"),
    "iterations": table(2, heads=SPREAD),
    "a further column": table(4, heads=f"{NOW} memory", behind="17"),
    "both": table(4, heads=f"{SPREAD} timestamp", behind="2025-03-01 09:08:00"),
    "a slow network": table(8, gb_per_s=0.02, sizes=[2**k for k in range(20, 34)]),
    "before root": table(4, heads=ROOTLESS),
    "in ms": table(2, heads=OLD, before="#", sizes=[4**k for k in range(5, 15)]),
    "NCCL 1": table(4, heads=OLD, above=DEVICES_1, kinds=KINDS_1, sizes=[10**k for k in range(3, 9)]),
    "by kubectl": table(2, before="2025-03-01T09:08:00.12Z"),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_a_column_is_say_the_heads_of_each_version(name: str) -> None:
    rate = 0.02 if name == "a slow network" else 4.0
    (found,) = taken_s(FORMS[name])
    assert found == pytest.approx(1.01 * (20e-6 + 1e8 / rate / 1e9), rel=0.02)
    (content,) = benches_of(FORMS[name], source="log", gradient_bytes=1e8)
    assert content["workers"] == FORMS[name].count(" device ") + FORMS[name].count(" -> ") and not content["wrong"]


def test_of_several_types_and_operations_the_sums_of_floats_are_read_and_an_old_form_is_named(golden: Golden) -> None:
    (content,) = benches_of(FORMS["NCCL 1"], source="log", gradient_bytes=1e8)
    golden(content["read"], "NCCL 1", "before 2019", "6 sizes", "float", "18 rows")
    with golden.raises(AnalysisError, match="NCCL 1.*1 size"):
        benches_of(table(4, heads=OLD, above=DEVICES_1, kinds=KINDS_1, sizes=[10**7]), source="log", gradient_bytes=1e8)
    with golden.raises(AnalysisError, match="line 7.*12 words.*13 heads"):
        benches_of(table(2).replace("  float", ""), source="log", gradient_bytes=1e8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table(2, root=0), "root is 0"),
        (table(2, kinds=[("float", 4, "none")], share=0.5), "no redop"),
        ("$ mpirun ./build/reduce_scatter_perf -b 8\n" + table(2, share=0.5), r"reduce_scatter_perf \(line \d+\) is"),
        ("# Collective test starting: alltoall_perf\n" + table(2, share=0.5), r"alltoall_perf \(line \d+\) is"),
        (table(1, share=0.0), "one worker"),
    ],
)
def test_what_is_no_all_reduce_is_refused_alone_and_left_out_of_a_session(text: str, said: str) -> None:
    with pytest.raises(AnalysisError, match=said):
        benches_of(text, source="log", gradient_bytes=1e8)
    alone = "$ all_reduce_perf -b 8\n" + table(2)
    for session in (alone + text, text + alone):
        (content,) = benches_of(session, source="log", gradient_bytes=1e8)
        assert re.search(f"left out: .*{said}", content["read"]) and "repeats" not in content["read"]
        assert taken_s(session) == taken_s(alone) == [pytest.approx(25.27e-3, rel=1e-3)]


def test_tables_that_differ_by_more_than_noise_are_two_configurations_and_name_a_line_of_each(golden: Golden) -> None:
    small = [2**k for k in range(3, 17)]
    for first, second in (
        (table(4), table(4, gb_per_s=0.2)),
        (table(4), table(4, gb_per_s=2.4)),
        (table(4, sizes=small), table(4, us=60.0, sizes=small)),
    ):
        with pytest.raises(AnalysisError, match="two configurations") as refused:
            benches_of(first + second, source="log", gradient_bytes=1e8)
        lines = [
            (first + second).splitlines()[int(line) - 1].split()
            for line in re.findall(r"line (\d+)", str(refused.value))
        ]
        assert len(lines) == 2 and lines[0][0] == lines[1][0] and lines[0][5:] != lines[1][5:]
    golden(str(refused.value))
    (content,) = benches_of(table(4) + table(4, us=26.0, gb_per_s=3.2) + table(4), source="log", gradient_bytes=1e8)
    assert "3 repeats" in content["read"]


def osu(title: str, heads: str, columns: int, sizes: Sequence[int] = tuple(4**k for k in range(1, 11))) -> str:
    rows = [" ".join([f"{size:<10}", *[f"{20 + size / 4e3:.2f}"] * columns]) for size in sizes]
    return "\n".join([f"# OSU {title} Test v7.1", "# Datatype: MPI_FLOAT.", f"# Size       {heads}", *rows, ""])


@pytest.mark.parametrize(
    ("title", "heads", "columns"),
    [
        ("MPI Allreduce Latency", "Latency (us)", 1),
        ("MPI-CUDA Allreduce Latency", "Avg Latency(us)", 1),
        ("MPI-ROCM Allreduce Latency", "Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations", 4),
        (
            "MPI Allreduce Latency",
            "Avg Latency(us)   Min Latency(us)   Max Latency(us)  P50 Tail Lat(us)  Iterations",
            5,
        ),
    ],
)
def test_osu_allreduce_of_each_version_is_read_and_extrapolated_from_its_1_mib(
    title: str, heads: str, columns: int
) -> None:
    (found,) = taken_s(osu(title, heads, columns), source="log@2")
    assert found == pytest.approx(20e-6 + 1e8 / 4e9, rel=1e-3)


@pytest.mark.parametrize(
    "title", ["MPI Latency", "MPI-CUDA Bandwidth", "MPI Allgather Latency", "MPI Non-blocking Allreduce Latency"]
)
def test_other_tests_of_osu_are_refused_by_their_names(title: str) -> None:
    with pytest.raises(AnalysisError, match=rf"OSU's {title.partition(' ')[2]} Test \(line 1\) is no all-reduce"):
        benches_of(osu(title, "Avg Latency(us)", 1), source="log@2", gradient_bytes=1e8)


def test_beyond_the_sizes_measured_the_slope_holds_the_interval_grows_and_a_doubt_says_the_largest(
    golden: Golden,
) -> None:
    text = table(2, sizes=[2**k for k in range(3, 21)])
    known = {
        size: measured_network(
            benches_of(text, source="log", gradient_bytes=size)[0], source="log", way=None, size=size
        )
        for size in (1e5, 4e6, 1e8, 1e9)
    }
    for size, each in known.items():
        assert each.link.bytes_per_s == pytest.approx(4e9 / 1.01, rel=0.03)
        assert bool(each.bandwidth_spread) == any("largest size" in doubt for doubt in each.doubts) == (size > 2**20)
    spreads = [each.bandwidth_spread for each in known.values()]
    assert spreads == [None, *(pytest.approx(ERROR_BEYOND * math.log2(size / 2**20)) for size in (4e6, 1e8, 1e9))]
    golden(known[1e8].doubts[0], "1,048,576 bytes", "100,000,000 bytes")
    (below,) = taken_s(table(2, sizes=[2**k for k in range(27, 32)]))
    assert below == pytest.approx(1.01 * (20e-6 + 1e8 / 4e9), rel=0.01)


def test_all_who_take_a_benchmark_extrapolate_it_and_say_so(tmp_path: Path, capsys) -> None:
    (tmp_path / "log").write_text(table(2, sizes=[2**k for k in range(3, 21)]))
    (tmp_path / "big.yaml").write_text(
        "name: big\ninput: 9\nlayers: [{name: a, parameters: 25000000, activations: 9, flop: 9}]\n"
    )
    (tmp_path / "points.csv").write_text("workers,samples_per_s,batch_size\n1,100,10\n2,190,10\n")
    bench = ["--bench", f"{tmp_path}/log"]
    network = ["--gradient-mb", "100", "--compute-ms", "100", "--batch", "64", "--workers", "2"]
    assert main(["predict", "--simulate", *bench, *network, "--algorithm", "ring", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["scenarios"]["baseline"]
    assert row["allreduce_s"] == pytest.approx(25.27e-3, rel=0.01) and row["allreduce_high_s"] > 2 * row["allreduce_s"]
    assert main(["predict", "--model-parallel", *bench, "--model", f"{tmp_path}/big.yaml", "--batch", "1"]) == 0
    assert "3.96 GB/s" in (told := capsys.readouterr().out) and "largest size measured is 1,048,576 bytes" in told
    assert main(["predict", f"{tmp_path}/points.csv", *bench, "--gradient-mb", "100", "--workers", "4"]) == 0
    assert "largest size measured is 1,048,576 bytes" in str(capsys.readouterr())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello\n", "holds no row of an all-reduce"),
        ("#bytes #repetitions t_avg[usec]\n  4  1000  10.00\n", "holds no row of an all-reduce"),
        (re.sub(r"(\d)\.(\d\d)", r"\1,\2", table(2)), "has 20,00 for a number.*decimal points"),
        (OSU.replace(".00 ", ",00 "), "has 10,00 for a number"),
        ("{", "is not valid JSON"),
    ],
    ids=["empty", "words", "IMB", "commas", "commas of OSU", "half a document"],
)
def test_what_cannot_be_read_says_what_it_is(text: str, said: str) -> None:
    with pytest.raises(AnalysisError, match=said):
        benches_of(text, source="log", gradient_bytes=1e8)


def test_sizes_in_mib_are_those_that_the_counts_say() -> None:
    plain = table(4, sizes=[2**20 * 4**k for k in range(6)])
    short = re.sub(r"(?m)^ (\d+)(?=  \d+  float)", lambda size: f" {int(size[1]) >> 20}M", plain)
    assert " 64M  16777216" in short and taken_s(short) == taken_s(plain)
    with pytest.raises(AnalysisError, match="16,777,217 elements of float are not 67,108,864 bytes"):
        benches_of(short.replace("16777216", "16777217"), source="log", gradient_bytes=1e8)


@pytest.mark.parametrize(("device", "nodes"), [(lambda rank: rank % 4, 2), (lambda rank: rank, 1), (lambda rank: 0, 1)])
def test_a_device_that_a_host_has_twice_is_of_another_node(device: Any, nodes: int) -> None:
    listed = "".join(
        f"#  Rank {n} Group 0 Pid {n} on box device {device(n)} [0000:1{device(n)}:00] X1\n" for n in range(8)
    )
    (content,) = benches_of(table(8, above=f"# Using devices\n{listed}"), source="log", gradient_bytes=1e8)
    assert f"8 workers on {nodes} node{'s' * (nodes > 1)} (" in content["read"]


def test_times_that_no_network_reaches_are_refused() -> None:
    with pytest.raises(AnalysisError, match="no network or memory moves as much"):
        benches_of(table(8, us=1e-3, gb_per_s=90_000.0), source="log", gradient_bytes=1e8)


def test_a_time_printed_with_two_digits_is_that_of_its_rate_and_the_unit_of_the_version_holds_without_rates() -> None:
    slow = table(8, gb_per_s=0.69, sizes=[2**k for k in range(20, 34)])
    assert "1.3e+07" in slow
    assert taken_s(slow, 2**33) == [pytest.approx(1.01 * 2**33 / 0.69e9, rel=0.01)]
    small = table(2, heads=OLD, sizes=[8, 64, 256])
    (content,) = benches_of(small, source="log", gradient_bytes=1e8)
    assert content["points"][0]["seconds_median"] == pytest.approx(20e-6, rel=0.03)
    with pytest.raises(AnalysisError, match="larger sizes"):
        taken_s(small, 64)
