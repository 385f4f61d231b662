"""`make bench`: what each option of the training step gains on this model, one worker on one thread.

Every option is run once per round as a process of its own, in an order shuffled again in each round, and compared with
the default of the same round. What cannot work on this machine is listed with the trainer's refusal. The matrix peak
of the core is measured in every round as well: a step's operations (programs/microbench.py) times its samples/s is a
share of that peak. Compiling and other first steps are warm-up, outside the timed window.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.programs.microbench import SIZES, MatrixRate, matrix_rates, step_flops
from horovod_study.strain import dataset
from horovod_study.strain.options import parse_widths
from horovod_study.text.progress import say

HERE = Path(__file__).parent
DEFAULT = "default"
OPERATIONS = step_flops(parse_widths("15-38-197"))
TRAINER = ("-m", "horovod_study.train")

# The trainer leaves the C library alone when the user has set one of its variables. Set from inside Python it is too
# late for the C library to read it, so that its own defaults hold: thresholds that adapt themselves, which any value
# given in time would switch off.
UNTOUCHED_LIBRARY = (
    "-c",
    "import os, runpy; os.environ['MALLOC_TRIM_THRESHOLD_'] = 'not read'; "
    "runpy.run_module('horovod_study.train', run_name='__main__', alter_sys=True)",
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One line of the table: the default step with something changed."""

    name: str
    options: tuple[str, ...] = ()
    program: tuple[str, ...] = TRAINER
    dtype: str = "float32"  # whose matrix peak it is compared with


VARIANTS = (
    Variant(name=DEFAULT),
    Variant(name="memory format contiguous", options=("--memory-format", "contiguous")),
    Variant(name="optimiser not fused", options=("--no-fused-optimizer",)),
    Variant(name="C library's own memory handling", program=UNTOUCHED_LIBRARY),
    Variant(name="input scaling fixed", options=("--input-scaling", "fixed")),
    Variant(name="precision bf16", options=("--precision", "bf16"), dtype="bf16"),
    Variant(name="compile", options=("--compile",)),
    Variant(name="native kernels", options=("--kernels", "native")),
    Variant(name="loader prefetch", options=("--loader", "prefetch")),
    Variant(name="loader device", options=("--loader", "device")),
    Variant(name="loader dataloader", options=("--loader", "dataloader")),
    Variant(
        name="loader dataloader, 2 processes", options=("--loader", "dataloader", "--loader-processes", "2")
    ),
    Variant(
        name="plain PyTorch",
        options=("--way", "plain"),
        program=(str(HERE / "plain_training.py"),),
    ),
)  # fmt: skip

NEED_A_GPU = (
    Variant(name="precision tf32", options=("--precision", "tf32")),
    Variant(name="precision fp16", options=("--precision", "fp16")),
    Variant(name="CUDA graphs", options=("--cuda-graphs",)),
    Variant(name="page-locked memory", options=("--pin-memory",)),
)


def command(variant: Variant, *, data: Path, batch: int, budget: Sequence[str], out: Path) -> list[str]:
    """Return the line that runs `variant` once."""
    common = ["--dataset", str(data), "--batch", str(batch), *budget]
    ours = ["--device", "cpu", "--no-checkpoint-at-end", "--json", "--out", str(out)]
    is_ours = variant.program in (TRAINER, UNTOUCHED_LIBRARY)
    return [sys.executable, *variant.program, *common, *(ours if is_ours else []), *variant.options]


def measure(variant: Variant, *, data: Path, batch: int, seconds: float, timeout_s: float) -> dict[str, Any]:
    """Run `variant` once; return samples/s (None with a reason if it failed) and, from the trainer, the step."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    with tempfile.TemporaryDirectory() as folder:
        line = command(variant, data=data, batch=batch, budget=("--seconds", str(seconds)), out=Path(folder) / "run")
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, env=environ)
        except subprocess.TimeoutExpired:
            return {"samples_per_s": None, "reason": f"no result within {timeout_s:g} s"}
    found = re.search(r"\{.*\}", done.stdout)
    if done.returncode or not found:
        return {"samples_per_s": None, "reason": done.stderr.strip()[-2000:] or "no output"}
    result = json.loads(found[0])
    kept = ("samples_per_s", "step_ms_median", "step_ms_p90", "laps_ms", "rss_mb_max")
    return {name: result[name] for name in kept if name in result}


def refusals(variants: Sequence[Variant], *, data: Path) -> dict[str, str]:
    """Return what the trainer says to each of `variants`, which cannot work here; it must refuse before it trains."""
    found = {}
    for variant in variants:
        with tempfile.TemporaryDirectory() as folder:
            line = command(
                variant, data=data, batch=75, budget=("--steps", "2", "--warmup-steps", "0"), out=Path(folder) / "run"
            )
            done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        found[variant.name] = last if done.returncode == 2 else f"NOT REFUSED (exit code {done.returncode}): {last}"
        say(f"{variant.name}: {found[variant.name]}")
    return found


def rows(
    measured: dict[str, list[dict[str, Any]]], peaks: dict[str, float], variants: Sequence[Variant]
) -> list[dict[str, Any]]:
    """Return one row per variant: samples/s over the rounds, as parts of the same round's default and of the peak."""
    table = []
    for variant in variants:
        runs = measured[variant.name]
        good = [run["samples_per_s"] for run in runs if run["samples_per_s"] is not None]
        ratios = [
            run["samples_per_s"] / base["samples_per_s"]
            for run, base in zip(runs, measured[DEFAULT], strict=True)
            if run["samples_per_s"] is not None and base["samples_per_s"] is not None
        ]
        gflops = statistics.median(good) * OPERATIONS / 1e9 if good else None
        spread = [run["step_ms_p90"] / run["step_ms_median"] for run in runs if "step_ms_p90" in run]
        table.append(
            {
                "variant": variant.name,
                "options": " ".join(variant.options),
                "samples_per_s_median": statistics.median(good) if good else None,
                "samples_per_s_min": min(good, default=None),
                "samples_per_s_max": max(good, default=None),
                "of_default_median": statistics.median(ratios) if ratios else None,
                "of_default_min": min(ratios, default=None),
                "of_default_max": max(ratios, default=None),
                "effect": effect(ratios),
                "step_p90_over_median": statistics.median(spread) if spread else None,
                "gflops_median": gflops,
                "peak_dtype": variant.dtype,
                "of_peak_median": None if gflops is None else gflops / peaks[variant.dtype],
                "failed": len(runs) - len(good),
                "runs": runs,
            }
        )
    return table


def effect(ratios: Sequence[float]) -> str | None:
    """Return in a word what the ratios to the default of the same round say; None for itself and from under three."""
    if len(ratios) < 3 or set(ratios) == {1.0}:
        return None
    if min(ratios) > 1:
        return "faster"
    return "slower" if max(ratios) < 1 else "within the spread"


def markdown(batch: int, table: list[dict[str, Any]]) -> str:
    """Return one table for people."""
    lines = [
        f"### batch {batch}",
        "",
        "| step | samples/s | spread | of the default | spread | effect | step p90/median | GFLOP/s "
        "| of the matrix peak |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for row in table:
        if row["samples_per_s_median"] is None:
            lines.append(f"| {row['variant']} | failed | | | | | | | |")
            continue
        p90 = "" if row["step_p90_over_median"] is None else f"{row['step_p90_over_median']:.2f}"
        lines.append(
            f"| {row['variant']} | {row['samples_per_s_median']:,.0f} "
            f"| {row['samples_per_s_min']:,.0f} - {row['samples_per_s_max']:,.0f} "
            + (
                f"| {row['of_default_median']:.2f} | {row['of_default_min']:.2f} - {row['of_default_max']:.2f} "
                if row["of_default_median"] is not None
                else "| | "
            )
            + f"| {row['effect'] or ''} | {p90} | {row['gflops_median']:.1f} | {row['of_peak_median']:.0%} |"
        )
    for row in table:
        if row["failed"]:
            lines += [
                "",
                f"{row['variant']}: {row['failed']} of {len(row['runs'])} runs failed and are not in the row.",
            ]
    return "\n".join(lines)


def peak_markdown(rates: list[MatrixRate]) -> str:
    """Return the table of the matrix products, per type and size over all rounds."""
    lines = ["| type | n | GFLOP/s | spread |", "|---|--:|--:|--:|"]
    for rate in rates:
        size = f"{rate.size:,}" if rate.size else "in registers"
        lines.append(
            f"| {rate.dtype} | {size} | {rate.gflops_median:.0f} | {rate.gflops_min:.0f} - {rate.gflops_max:.0f} |"
        )
    return "\n".join(lines)


def over_rounds(rounds: list[list[MatrixRate]]) -> list[MatrixRate]:
    """Return one rate per type and size from those of the rounds."""
    return [
        MatrixRate(
            dtype=same[0].dtype,
            size=same[0].size,
            gflops_median=statistics.median(rate.gflops_median for rate in same),
            gflops_min=min(rate.gflops_min for rate in same),
            gflops_max=max(rate.gflops_max for rate in same),
            rounds=len(same),
        )
        for same in zip(*rounds, strict=True)
    ]


def main() -> int:
    """Measure everything, print as it comes, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times every variant is run (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed window of each run (default 3)")
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 1024], help="curves per step (default 75 1024)")
    parser.add_argument(
        "--products", type=int, nargs="+", default=SIZES, help="rows of the matrices whose products show the peak"
    )
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--only", default="", help="run only variants whose name matches this regular expression")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    options = parser.parse_args()

    machine = environment.describe()
    data = dataset.ensure(options.curves, seed=1)
    wanted = [v for v in (*VARIANTS, *NEED_A_GPU) if re.search(f"^{DEFAULT}$|{options.only}", v.name, re.IGNORECASE)]
    refused = refusals([variant for variant in wanted if variant in NEED_A_GPU], data=data)
    variants = [variant for variant in wanted if variant in VARIANTS]
    shuffle = random.Random(1)
    began = now()
    total = len(options.batches) * options.rounds * len(variants)
    done = 0
    runs: dict[int, dict[str, list[dict[str, Any]]]] = {}
    rates: list[list[MatrixRate]] = []
    for batch in options.batches:
        runs[batch] = {variant.name: [] for variant in variants}
        for number in range(options.rounds):
            rates.append(matrix_rates(sizes=options.products, rounds=1, seconds=min(0.3, options.seconds / 10)))
            for variant in shuffle.sample(variants, len(variants)):
                result = measure(
                    variant, data=data, batch=batch, seconds=options.seconds, timeout_s=240 + 20 * options.seconds
                )
                runs[batch][variant.name].append(result)
                done += 1
                value = result["samples_per_s"]
                text = f"{value:,.0f} samples/s" if value else f"failed:\n{result['reason']}"
                left_min = (now() - began) / done * (total - done) / 60
                say(
                    f"[{done}/{total}] batch {batch} round {number + 1}: {variant.name}: {text}"
                    f"  ({left_min:.0f} min left)"
                )

    products = over_rounds(rates)
    peaks = {
        dtype: max(rate.gflops_median for rate in products if rate.dtype == dtype) for dtype in ("float32", "bf16")
    }
    tables = {batch: rows(measured, peaks, variants) for batch, measured in runs.items()}
    head = [
        "# The training step",
        "",
        f"Measured by `make bench` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"Python {machine['python']}, PyTorch {machine['torch']}; {options.rounds} rounds, {options.seconds:g} s each, "
        "variants in random order within a round, one worker, one thread. "
        f"Load of the machine before: {machine['load_1min']:.1f}.",
        "",
        "The default: channels-last, fused Adam, fp32, freed memory kept, batches gathered from shared memory. Ratios "
        "are taken within each round; spread is smallest to largest over the rounds; an effect is named where all "
        f"rounds agree. A step has {OPERATIONS / 1e6:.2f} million operations per curve in convolutions and matrix "
        "products; the matrix peak is the fastest line of the last table: of float32, for bf16 of bf16.",
        "",
    ]
    tail = [
        "",
        "### What cannot work on this machine, in the trainer's words",
        "",
        *(f"- {name}: `{text}`" for name, text in refused.items()),
        "",
        "### Matrix products of n x n on one thread, and multiply-adds in its registers",
        "",
        peak_markdown(products),
        "",
    ]
    text = "\n".join([*head, *("\n" + markdown(batch, table) + "\n" for batch, table in tables.items()), *tail])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "step.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "host": platform.node(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "operations_per_curve": OPERATIONS,
        "matrix_products": [rate._asdict() for rate in products],
        "refused": refused,
        "batches": {str(batch): table for batch, table in tables.items()},
    }
    (options.out / "step.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'step.md'} and .json")
    failed = any(row["failed"] for table in tables.values() for row in table)
    return 1 if failed or any(line.startswith("NOT REFUSED") for line in refused.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
