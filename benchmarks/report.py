"""`make bench BENCH=report`: what `analyze` and `report` take for studies of up to 1,000 runs, and the size of pages.

Whole commands are timed, from the shell to their end; memory is that of the process and its children. The studies are
those of tests/make/synthetic_study.py: two partitions, Horovod over NCCL and MPI and DDP over NCCL, up to four batches
and five repeats, with evaluations and samples of the hosts. Nothing is trained. The bar: the report of 1,000 runs in
less than a minute, its page below 5 MB.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.measure import environment
from horovod_study.measure.clock import utc_now
from horovod_study.report.kit.files import write_result
from horovod_study.text.progress import say

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from analysis import timed  # noqa: E402
from make.synthetic_study import write_study  # noqa: E402

LIMITS = {"report_s": 60.0, "page_mb": 5.0, "runs": 1_000}
SERIAL, NCCL, MPI, DDP = ("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"), ("ddp", "nccl")
STUDIES: Mapping[int, Mapping[str, Any]] = {
    100: {
        "partitions": ("alpha",),
        "ways": (SERIAL, NCCL, MPI),
        "workers": (1, 2, 4, 8, 16),
        "batches": (64, 256, 1024),
    },
    300: {
        "partitions": ("alpha", "gpu2"),
        "ways": (SERIAL, NCCL, MPI),
        "workers": (1, 2, 4, 8, 12, 16, 24),
        "batches": (64, 256),
        "repeats": 5,
    },
    1_000: {
        "partitions": ("alpha", "gpu2"),
        "ways": (SERIAL, NCCL, MPI, DDP),
        "workers": (1, 2, 3, 4, 6, 8, 12, 16),
        "batches": (64, 256, 1024, 4096),
        "repeats": 5,
    },
}
STEPS = 150


def measure(folder: Path, *, about: int, rounds: int) -> list[dict[str, Any]]:
    """Return what one study took, once per round."""
    runs, out = folder / "runs", folder / "analysis"
    say(f"writing a study of about {about:,} runs")
    write_study(runs, steps=STEPS, seed=about, **STUDIES[about])
    count = sum(1 for path in runs.iterdir() if path.is_dir())
    command = [sys.executable, "-m", "horovod_study.cli"]
    found = []
    for number in range(rounds):
        say(f"{count:,} runs, round {number + 1} of {rounds}")
        analyze = timed([*command, "report", "--tables", str(runs), "--out", str(out)])
        report = timed([*command, "report", str(out)])
        figures = sorted(path.stem for path in (out / "figures").glob("*.pdf"))
        found.append(
            {
                "runs": count,
                "analyze": analyze,
                "report": report,
                "page_mb": (out / "report.html").stat().st_size / 1e6,
                "figures": figures,
                "files_mb": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6,
            }
        )
        shutil.rmtree(out)
    shutil.rmtree(runs)
    return found


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the page."""
    machine = result["machine"]
    found = [
        "# A report of many runs",
        "",
        f"Measured by `{result['command']}` on {result['measured'][:10]}: {machine['cpu_model']}, "
        f"{machine['cores']} cores, Python {machine['python']}; load at the end {machine['load_1min']}.",
        "",
        "Whole commands (`horovod-study report --tables RUNS --out DIR`, then `horovod-study report DIR`), from the "
        "shell to their end. Memory: the most at a time of the process and its children. Figures: PDF, SVG, PNG each.",
        "",
        "| runs | analyze, s | report, s | analyze, GB | report, GB | page, MB | figures | all files, MB |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in result["measurements"]:
        analyze, report = each["analyze"], each["report"]
        found.append(
            f"| {each['runs']:,} | {analyze['s']:.1f} | {report['s']:.1f} | {analyze['own_gb']:.2f} | "
            f"{report['own_gb']:.2f} | {each['page_mb']:.2f} | {len(each['figures'])} | {each['files_mb']:.1f} |"
        )
    return found


def kept(found: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the limits were kept by every study, the largest included."""
    return all(each["report"]["s"] < LIMITS["report_s"] and each["page_mb"] < LIMITS["page_mb"] for each in found)


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", choices=sorted(STUDIES), default=sorted(STUDIES))
    parser.add_argument("--rounds", type=int, default=1, help="how often each command is timed (default 1)")
    parser.add_argument("--folder", type=Path, help="where the runs are written for a while (default: TMPDIR)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the page goes")
    options = parser.parse_args()
    # Interrupted or told to end, what was written is removed like at the end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: list[dict[str, Any]] = []
    for about in options.runs:
        with tempfile.TemporaryDirectory(prefix="report-", dir=options.folder) as name:
            found += measure(Path(name), about=about, rounds=options.rounds)
    machine = {name: value for name, value in environment.describe().items() if name != "command"}
    result = {
        "measured": utc_now(),
        "command": "make bench BENCH=report",
        "machine": machine,
        "measurements": found,
        "limits": LIMITS,
        "kept": kept(found),
    }
    page = "\n".join(lines(result)) + "\n"
    print(page)
    write_result(options.out, {"report.md": page, "report.json": result})
    return 0 if result["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
