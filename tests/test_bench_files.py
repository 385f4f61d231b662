"""What other benchmarks print, read as a network: the layouts of nccl-tests and of OSU, and what is no all-reduce."""

import json
import re
from pathlib import Path

import pytest
from make.wording import Golden

from horovod_study import api
from horovod_study.analysis.machine.bench_files import benches_of, largest_of_each_kind
from horovod_study.analysis.simulate.calibration import Given, calibrate, measured_network
from horovod_study.cli import main
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
    rows = "".join(line + "\n" for line in text.splitlines() if "Rank" not in line)
    for each, how in ((text, "of the devices listed"), (prefixed, "of the devices"), (rows, "from busbw/algbw")):
        (content,) = benches_of(each, source="a.txt", gradient_bytes=1e8)
        found = measured_network(content, source="a.txt", way=None, size=1e8)
        assert (found.way, found.workers, found.nodes, found.overhead_s) == ("nccl", 8, 1, None)
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
    assert main(["simulate", "--bench", f"{tmp_path}/osu.txt@2x4", *words]) == 0
    told = capsys.readouterr()
    golden(told.err, "osu_allreduce", "8 workers", "2 nodes", "3 sizes", "1,048,576")
    assert json.loads(told.out)
    with golden.raises(AnalysisError, match=r"osu\.txt@4x8"):
        benches_of(OSU, source="osu.txt", gradient_bytes=1e8)


def test_of_several_counts_the_largest_is_used_and_the_others_are_compared_with_it() -> None:
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
    # S / beta is twice as long, and four workers move 1.5 / 1.75 of the bytes that eight do.
    (told,) = doubts
    assert float(re.search(r"took ([\d.]+) of what", told)[1]) == pytest.approx(2 * 1.75 / 1.5, rel=0.05)
    others = [each for each in found if each not in kept]
    known = calibrate(Given(compute_ms=1.0, batch=1), benches=kept, further=others)
    assert [each.workers for each in known.scenario.network.measured.sweeps] == [8, 16, 4]


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
