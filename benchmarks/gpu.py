"""benchmarks/gpu.sh: what training on a GPU takes here, checked first, in the time there is.

    python benchmarks/gpu.py --part facts                  on a machine with an NVIDIA GPU; a part, or without it all
    python benchmarks/gpu.py --dry-run --out DIR           the same code on a CPU with tiny sizes; promises nothing
    python benchmarks/gpu.py --add RESULTS.json            adds results of other runs, or machines, to those in --out
    python benchmarks/gpu.py --table RESULTS.json          the table of a results file again

Sections run one after the other, the most important first; nothing else runs meanwhile. Each gets the time it needs at
most, and where there is less, its share of it. One that fails is recorded with its message, and the others go on. After
every section `gpu.json` and `gpu.md` in --out are written again, as a whole: a run that is cut off leaves the results
so far. Sections of earlier runs stay in them until they are measured again; on what each was measured is kept with it.

Sections that use the GPU are programs of their own: this one never touches it, so that a broken context, a crash or
an endless wait takes one section along and no more. The package need not be installed.

Exit codes: 0 the checks passed and the targets were met that belong to the sections of this run; 1 not, the table says
which; 2 wrong use, or no GPU.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import gpu_table

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from horovod_study import records
from horovod_study.comm import builds
from horovod_study.files import write_file
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.strain import dataset
from horovod_study.strain.options import STRAIN, parse_widths
from horovod_study.text.progress import say

SCHEMA = 2
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
RESTARTS = 6
"""So often a program is started again without a way that failed."""

MOST_AT_A_TIME = 6
"""Processes of tests, or of compilers, at a time: each has a context of CUDA, some hundred MB, and starts others."""

SCALING_RUN_S = 60
"""At most, for a run on several GPUs: one that hangs costs the others no more."""

ENDING = threading.Event()
"""Set when this program was told to end."""

RESERVE_S = 3.0
"""Kept at the end for writing, and to end what a section left."""

DEFAULT_WIDTHS = str(STRAIN.options["widths"].default)
CAPTURED = ("--loader", "device", "--cuda-graphs")
"""The trainer's options for steps captured in CUDA graphs on data that is on the GPU."""

BLOCK_VARIANTS = (
    *("8 warps", "2 warps", "twice the cells", "half the cells", "2 stages", "4 stages"),
    *("32 filters", "32 terms", "half the chunks"),
)
"""Of block_variants.py, in the order in which they are tried."""

MACHINE_FIELDS = (
    *("name", "driver_version", "compute_cap", "memory.total", "power.limit", "persistence_mode", "ecc.mode.current"),
    *("clocks.max.sm", "clocks.max.memory", "clocks.sm", "temperature.gpu", "pcie.link.gen.current"),
    *("pcie.link.width.current", "mig.mode.current", "compute_mode"),
)
"""What nvidia-smi is asked for; the moving ones are asked again at the end."""

TORCH_FACTS = """
import json, torch
from horovod_study.strain import kernels
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
found["not_fused"] = kernels.why_not()
try:
    import triton
    found["triton"] = triton.__version__
except ImportError:
    found["triton"] = None
if torch.cuda.is_available():
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    each = torch.cuda.get_device_properties(0)
    found |= {"gpu": each.name, "gpus": torch.cuda.device_count(), "gpu_memory_gb": round(each.total_memory / 1e9, 1)}
    found |= {"multiprocessors": each.multi_processor_count, "capability": f"{each.major}.{each.minor}"}
print(json.dumps(found))
"""


class Failed(Exception):
    """A section that came to nothing, in one line."""


class LeftOut(Exception):
    """A section that has no place here, in one line why."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    curves: str
    batches: tuple[int, ...]
    rounds: int
    epoch_rounds: int
    epochs: int
    block_s: float
    block_warmup_steps: int
    losses_steps: int
    run_steps: int
    warmup_steps: int
    workers: tuple[int, ...]
    energy_s: float
    beside_curves: str  # of runs that are processes of their own: their start is shorter with fewer curves
    step_ways: tuple[str, ...]
    epoch_ways: tuple[str, ...]
    smoke_ways: tuple[str, ...]


REAL = Sizes(
    curves="1000000",
    batches=(75, 1024),
    rounds=15,
    epoch_rounds=5,
    epochs=4,
    block_s=0.25,
    block_warmup_steps=20,
    losses_steps=100,
    run_steps=20_000,
    warmup_steps=200,
    workers=(2, 4),
    energy_s=6.0,
    beside_curves="100000",
    step_ways=(
        *("plain loop", "fused", "graphs", "fused bf16", "graphs bf16", "fused tf32", "graphs tf32", "no graphs"),
        *("plain loop, DataLoader", "graphs fp16"),
    ),
    epoch_ways=("plain loop", "fused", "fused tf32", "fused bf16"),
    smoke_ways=("fused", "fused tf32", "fused bf16", "graphs", "graphs tf32"),
)
DRY = replace(
    REAL,
    curves="960",
    batches=(6, 10),
    rounds=2,
    epoch_rounds=1,
    epochs=2,
    block_s=0.01,
    block_warmup_steps=2,
    losses_steps=3,
    run_steps=20,
    warmup_steps=2,
    workers=(2,),
    energy_s=1.0,
    beside_curves="960",
    step_ways=("plain loop", "graphs", "graphs bf16", "no graphs", "plain loop, DataLoader"),
    epoch_ways=("plain loop", "graphs"),
    smoke_ways=("graphs",),
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a section is given: sizes, a folder of its own, the environment of its programs, and when it must end."""

    sizes: Sizes
    dry: bool
    folder: Path
    environ: Mapping[str, str]
    ends_at: float
    fused: bool  # whether the fused kernels can run at all
    gpus: int  # how many PyTorch sees
    found: Mapping[str, Any]  # the sections so far of this machine and these sources, as in the document

    @property
    def left_s(self) -> float:
        """Seconds until this section must have ended."""
        return self.ends_at - now()

    @property
    def device(self) -> str:
        """Where to compute."""
        return "cpu" if self.dry else "cuda"

    @property
    def best(self) -> tuple[str, ...]:
        """The trainer's options for its fastest step in float32."""
        return (*CAPTURED, "--kernels", "fused") if self.fused and not self.dry else CAPTURED

    def ways(self, names: Sequence[str]) -> list[str]:
        """Return `names` without those that need fused kernels where there are none."""
        return [name for name in names if self.fused or not name.startswith("fused")]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the results: what measures it, the least time that is worth a start, and the most it may take."""

    name: str
    part: str
    measure: Callable[[Work], dict[str, Any]]
    least_s: float
    most_s: float
    several: bool = False  # has a place only where there are several GPUs


# ------------------------------------------------------------------------------------------------ running programs


def run_program(line: Sequence[str | Path], work: Work, *, what: str) -> str:
    """Run a program of this section to its end and return its standard output.

    Raises Failed with its last words if it ends with another code than 0, or not in time; nothing of it is left then.
    """
    said: list[bytes] = []
    limit_s = work.left_s
    code, complaint = run_lines(line, work, said.append)
    text = b"\n".join(said).decode(errors="replace")
    if code is None:
        raise Failed(f"{what} did not end within {limit_s:.0f} s")
    if code:
        raise Failed(f"{what} ended with code {code}: {last_words(complaint) or last_words(text)}")
    return text


def run_lines(line: Sequence[str | Path], work: Work, take: Callable[[bytes], object]) -> tuple[int | None, str]:
    """Run a program, giving each line of its standard output to `take` as it comes.

    Returns its exit code, None if the section's time was over or this program was told to end, and its standard error.
    Nothing of it is left then.
    """
    with (work.folder / "stderr.txt").open("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(
            list(map(str, line)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            cwd=ROOT,
            env=dict(work.environ),
            start_new_session=True,
        )
        assert process.stdout is not None
        rest, ended, code = b"", False, None
        try:
            while not ended and work.left_s > 0 and not ENDING.is_set():
                if select.select([process.stdout], [], [], min(1.0, max(0.05, work.left_s)))[0]:
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    ended = not part
                    *whole, rest = (rest + part).split(b"\n")
                    for each in whole:
                        take(each)
            if ended:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=max(1.0, work.left_s))
        finally:
            end_group(process)
            process.stdout.close()
        if rest and code is not None:  # else it may be half a line
            take(rest)
        complaints.seek(0)
        return code, complaints.read()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and all it started; nothing is done to one that has ended and left nobody."""
    for number, patience_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=patience_s)


def last_words(text: str) -> str:
    """Return the line that tells most: the last that speaks of an error, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|failed|refused", line, re.IGNORECASE)]
    return (telling or lines or [""])[-1][:500]


def in_turns(plan: Mapping[str, Any], work: Work) -> list[dict[str, Any]]:
    """Run benchmarks/gpu_steps.py on `plan` and return all it said, starting it again without a way that failed.

    Raises Failed only if it said nothing: what was found before a failure counts.
    """
    said: list[dict[str, Any]] = []
    without: list[list[Any]] = []
    program = "gpu_smoke.py" if plan["what"] in ("smoke", "prepare") else "gpu_steps.py"
    for _ in range(1 + RESTARTS):
        content = {**plan, "without": without, "seconds": max(1.0, 0.92 * work.left_s - 8.0 * (not work.dry))}
        (work.folder / "plan.json").write_text(json.dumps(content), encoding="utf-8")
        lines, code, complaint = read_lines([sys.executable, HERE / program, work.folder / "plan.json"], work)
        first = 1 + max((line["round"] for line in said if "round" in line), default=-1)
        said += [{**line, "round": line["round"] + first} if "round" in line else line for line in lines]
        if code == 0 or any(line["says"] == "done" for line in lines):  # a profiler at the end may crash
            return said
        began = next((line for line in reversed(lines) if line["says"] in ("begins", "failed")), None)
        if began is None or code is None:  # before the first way, or out of time
            if not any(line["says"] in ("losses", "block", "epochs", "prepared") for line in said):
                raise Failed(complaint)
            return [*said, {"says": "cut off", "why": complaint}]
        key = [began["way"], began["batch"]]
        if began["says"] == "begins":
            said.append({"says": "failed", "way": key[0], "batch": key[1], "why": complaint})
        without.append(key)
        if work.left_s < 20:
            break
    return [*said, {"says": "cut off", "why": f"{len(without)} ways broke the process"}]


def echo(line: Mapping[str, Any]) -> None:
    """Tell the user of a finding as it comes."""
    where = f"  {line['way']}, batch {line['batch']}: " if "way" in line else ""
    if line["says"] == "losses":
        say(f"{where}ready after {line['opened_s']:.1f} s")
    elif line["says"] == "block" and line["round"] == 0:
        say(f"{where}{line['seconds'] / line['steps'] * 1e6:,.1f} us a step")
    elif line["says"] == "smoke":
        say(f"{where}{line['step_s'] * 1e6:,.1f} us a step, {line['light_s'] * 1e6:,.1f} with timers")
    elif line["says"] == "epochs":
        say(f"{where}{statistics.median(line['epoch_s']):.3f} s an epoch")
    elif line["says"] in ("failed", "left out"):
        say(f"{where}{line['says']}: {line['why']}")
    elif line["says"] == "test" and line["outcome"] == "failed":
        say(f"  failed: {line['name']}: {' '.join(line['why'].split())[:300]}")


def read_lines(line: Sequence[str | Path], work: Work) -> tuple[list[dict[str, Any]], int | None, str]:
    """Run a program that prints lines of JSON; return them, its exit code (None: out of time), and its last words."""
    found: list[dict[str, Any]] = []

    def take(each: bytes) -> None:
        if each.startswith(b'{"says"'):
            found.append(json.loads(each))
            echo(found[-1])

    code, complaint = run_lines(line, work, take)
    if code is None:
        return found, None, "the time of the section was over"
    return found, code, f"the process ended with code {code}: {last_words(complaint)}"


def trained(
    work: Work, *options: str, launcher: Sequence[str | Path] = (), name: str = "run"
) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Train in a program of its own; return what it printed, its run.json, and its folder."""
    out = work.folder / name
    shutil.rmtree(out, ignore_errors=True)
    line = [*launcher, sys.executable, "-m", "horovod_study.train", "--device", work.device, *options]
    said = run_program([*line, "--no-checkpoint-at-end", "--json", "--out", out], work, what="training")
    found = re.search(r"\{.*\}", said)
    if not found:
        raise Failed("training printed no result")
    return json.loads(found[0]), json.loads((out / records.MANIFEST).read_text(encoding="utf-8")), out


def verb(work: Work, *words: str | Path) -> dict[str, Any]:
    """Run a verb of `horovod-study` with --json and return what it printed."""
    line = [sys.executable, "-m", "horovod_study.cli", *words, "--json"]
    said = run_program(line, work, what=f"horovod-study {' '.join(map(str, words[:2]))}")
    found = re.search(r"^\{.*\}$", said, re.MULTILINE)
    if not found:
        raise Failed(f"horovod-study {words[0]} printed no JSON")
    return json.loads(found[0])  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ the sections


def describe_machine(pytorch: Mapping[str, Any], path: str | None) -> dict[str, Any]:
    """Return what this is measured on; `pytorch` is what TORCH_FACTS prints, `path` where programs are looked for."""
    found = {name: value for name, value in environment.describe().items() if name != "command"}
    found |= {"host": platform.node(), "cores_usable": len(environment.affinity()), "pytorch": dict(pytorch)}
    found |= {"nvidia_smi": nvidia_smi(), "nvcc": None, "horovod_builds": builds.available()}
    found["revision"] = found["revision"] or f"sources {digest()}"
    nvcc = shutil.which("nvcc", path=path) or "/usr/local/cuda/bin/nvcc"
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20)
        release = re.search(r"release ([\d.]+)", told.stdout)
        found["nvcc"] = release[1] if release else None
    return found


def digest() -> str:
    """Return twelve digits that change with the sources: a copy of them may have no history."""
    files = sorted([*ROOT.glob("horovod_study/**/*.py"), *HERE.glob("gpu*.py")])
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]


def nvidia_smi() -> dict[str, str | None]:
    """Return what the driver says of the first GPU, by field; None for what it does not know, all None without it."""

    def ask(fields: Sequence[str]) -> list[str] | None:
        line = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        values = [value.strip() for value in done.stdout.strip().split(",")]
        return values if done.returncode == 0 and len(values) == len(fields) else None

    together = ask(MACHINE_FIELDS)
    if together is not None:
        return dict(zip(MACHINE_FIELDS, together, strict=True))
    if shutil.which("nvidia-smi") is None:
        return dict.fromkeys(MACHINE_FIELDS)
    return {field: (ask([field]) or (None,))[0] for field in MACHINE_FIELDS}  # a field that a driver does not know


def measure_data(work: Work) -> dict[str, Any]:
    """The data sets, made here: nothing is brought along. Meanwhile the fused kernels are compiled."""
    began = now()
    sizes = dict.fromkeys((work.sizes.curves, work.sizes.beside_curves))
    processes = 1 if work.dry else min(8, len(environment.affinity()))
    with ThreadPoolExecutor(1) as aside:
        prepared = aside.submit(prepare, work, work.sizes.step_ways)
        made = {size: str(dataset.ensure(size, seed=1, threads=processes)) for size in sizes}
    opened = dataset.open_dataset(Path(made[work.sizes.curves]))
    return {
        "seconds": now() - began,
        "curves": int(work.sizes.curves),
        "training_curves": opened.train_size,
        "gb": opened.train_size * 4 * (3 * 201 + 2) / 1e9,
        "prepared_s": prepared.result(),
    }


def measure_correctness(work: Work) -> dict[str, Any]:
    """The tests that are marked `gpu`: some processes at a time, because they measure nothing.

    What has failed, or never began because its process ended, is tried once more in a process of its own: another test
    may have broken the first one's context, or taken the GPU's time or memory from it.
    """
    files = [str(path) for path in sorted(ROOT.glob("tests/test_*.py")) if "pytest.mark.gpu" in path.read_text("utf-8")]
    if not files:
        raise Failed("no tests are marked gpu")
    shares = max(1, min(MOST_AT_A_TIME, len(environment.affinity()) // 2))
    said = tests_at_a_time([{"what": files, "share": [number, shares]} for number in range(shares)], work)
    if not said:
        raise Failed("pytest told of no test: is it installed?")
    bad = gpu_table.tests(said)["failures"]
    if bad and work.left_s > 20:
        say(f"  {len(bad)} tests once more, each in a process of its own")
        said += tests_at_a_time([{"what": [each["test"]], "share": [0, 1]} for each in bad], work)
    return gpu_table.tests(said)


def tests_at_a_time(plans: Sequence[Mapping[str, Any]], work: Work) -> list[dict[str, Any]]:
    """Run benchmarks/gpu_tests.py on each plan, some at a time; return all they said, and what they lost."""

    def run(numbered: tuple[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        number, plan = numbered
        folder = work.folder / f"tests-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        line: list[str | Path] = [sys.executable, HERE / "gpu_tests.py", folder / "plan.json"]
        lines, _, complaint = read_lines(line, replace(work, folder=folder))
        ended = {each["name"] for each in lines if each["says"] == "test"}
        lost = [name for each in lines if each["says"] == "tests" for name in each["names"] if name not in ended]
        if lost or not lines:  # the first of them is what the process ended in
            say(f"  {', '.join(lost[:1])}: {complaint}")
        return [*lines, *({"says": "lost", "name": name, "why": complaint} for name in lost)]

    with ThreadPoolExecutor(MOST_AT_A_TIME) as pool:
        return [line for lines in pool.map(run, enumerate(plans)) for line in lines]


def data_of(curves: str) -> Path:
    """Return where a generated data set is."""
    return dataset.path_of(curves, seed=1).absolute()


def plan_of(work: Work, what: str, ways: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the plan of a section in which ways alternate."""
    return {
        "what": what,
        "dataset": str(data_of(work.sizes.curves)),
        "device": work.device,
        "ways": work.ways(ways),
        "batches": list(work.sizes.batches),
        "rounds": rounds,
        "block_s": work.sizes.block_s,
        "warmup_steps": work.sizes.block_warmup_steps,
        "losses_steps": work.sizes.losses_steps,
        "epochs": work.sizes.epochs,
    }


def measure_smoke(work: Work) -> dict[str, Any]:
    """A captured step in each way, node by node, on random curves."""
    prepared = prepare(work, work.sizes.smoke_ways)
    plan = plan_of(work, "smoke", work.sizes.smoke_ways, rounds=1)
    said = in_turns({**plan, "losses_steps": min(50, work.sizes.losses_steps)}, work)
    return {**gpu_table.smoke(said), "prepared_s": prepared}


def prepare(work: Work, ways: Sequence[str]) -> dict[str, float]:
    """Compile the fused kernels of `ways`, some at a time, kept on the disk; return the seconds of each."""
    found: list[dict[str, Any]] = []
    plan = plan_of(work, "prepare", [] if work.dry else [name for name in ways if name.startswith("fused")], rounds=0)

    ends_at = now() + min(60.0, 0.4 * work.left_s)  # what is not compiled by then is compiled where it is needed

    def run(way: str, batch: int) -> None:
        folder = work.folder / f"{way}, {batch}"
        folder.mkdir()
        own = replace(work, folder=folder, ends_at=ends_at)
        found.extend(in_turns({**plan, "ways": [way], "batches": [batch]}, own))

    with ThreadPoolExecutor(MOST_AT_A_TIME) as pool:
        for way in plan["ways"]:
            for batch in plan["batches"]:
                pool.submit(run, way, batch)
    return {f"{each['way']}, {each['batch']}": each["opened_s"] for each in found if each["says"] == "prepared"}


def measure_step(work: Work) -> dict[str, Any]:
    """Losses and seconds of a step in every way."""
    return gpu_table.steps(in_turns(plan_of(work, "steps", work.sizes.step_ways, work.sizes.rounds), work))


def measure_compile(work: Work) -> dict[str, Any]:
    """The same for torch.compile, which takes long to start: beside the plain loop and the graphs."""
    ways = ("plain loop", "graphs", "compile + graphs", "compile")
    return gpu_table.steps(in_turns(plan_of(work, "steps", ways, work.sizes.rounds), work))


def measure_kernels(work: Work) -> dict[str, Any]:
    """The fused kernels with other sizes of their blocks, as many as there is time to compile."""
    if not work.fused:
        raise LeftOut("there are no fused kernels here")
    ways = ("fused", *(f"fused, {name}" for name in BLOCK_VARIANTS))
    return gpu_table.steps(in_turns(plan_of(work, "steps", ways, work.sizes.rounds), work))


def measure_epochs(work: Work) -> dict[str, Any]:
    """Whole epochs of the trainer, recorded as ever, and of the plain loop, in turns."""
    plan = plan_of(work, "epochs", work.sizes.epoch_ways, work.sizes.epoch_rounds)
    return gpu_table.epochs(in_turns(plan, work))


def measure_timers(work: Work) -> dict[str, Any]:
    """What the timers cost on captured steps."""
    sizes = work.sizes
    seconds = str(max(2.0, 0.75 * work.left_s / len(sizes.batches) - 8)) if not work.dry else "1"
    found = verb(
        work,
        *("bench", "timers", "--dataset", sizes.beside_curves, "--device", work.device),
        *("--batch", *map(str, sizes.batches), "--seconds", seconds, *work.best, "--out", str(work.folder / "timers")),
    )
    return {"cases": found["cases"], "options": list(work.best)}


def measure_exchange(work: Work) -> dict[str, Any]:
    """The all-reduce of a run's gradients by one rank, called as if there were others.

    One worker has nothing to average, and training with it calls no library: what a library takes for a step is
    measured by calling it. By NCCL and torch, and by Horovod where there is a build of it.
    """
    if work.dry:
        return {"runs": exchanges(work, ("ddp/gloo", "horovod/mpi"), workers=2)}
    return {"runs": exchanges(work, ("ddp/nccl", "horovod/nccl"), workers=1)}


def exchanges(work: Work, runtimes: Sequence[str], *, workers: int) -> list[dict[str, Any]]:
    """Return what an all-reduce of all gradients of the model takes through each runtime, or why that is not known."""
    found: list[dict[str, Any]] = []
    for name in runtimes:
        row: dict[str, Any] = {"way": name, "workers": workers, "bytes": None, "seconds": None, "why": None}
        try:
            document = verb(
                *(work, "bench", "--workers", str(workers), "--transport", "--runtime", name, "--sizes", "4"),
                *("--seconds", "1" if work.dry else "5", "--rounds", "3", "--out", work.folder / "bench"),
            )
            in_place = [
                each for each in document["points"] if each["operation"] == "allreduce" and each["place"] == "in"
            ]
            largest = max(in_place, key=lambda each: int(each["bytes"]))  # all gradients of the model
            row |= {"bytes": largest["bytes"], "seconds": largest["seconds_median"]}
        except Failed as error:
            row["why"] = str(error)
        say(f"  {name}: {row['why'] or format(row['seconds'] * 1e6, ',.1f') + ' us'}")
        found.append(row)
    return found


def torchrun(workers: int) -> list[str | Path]:
    """Return what starts so many ranks of torch.distributed; it is told to start no Python of its own."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    return [*line, "--no-python"]


def horovodrun(workers: int) -> list[str | Path]:
    """Return what starts so many ranks of Horovod without MPI."""
    return [BIN / "horovodrun", "--gloo", "-np", str(workers)]


def measure_workers(work: Work) -> dict[str, Any]:
    """Several workers that share the one GPU: staged through the host, because NCCL refuses two ranks on one GPU."""
    sizes, batch = work.sizes, str(work.sizes.batches[0])
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    ways: list[tuple[str, int, list[str | Path], list[str]]] = []
    for count in sizes.workers:
        number = str(count)
        mpirun: list[str | Path] = [BIN / "mpirun", *root, "--bind-to", "none", "-np", number]
        ways.append(("mpi4py, staged", count, mpirun, ["--backend", "mpi"]))
        ways.append(("torch DDP over Gloo", count, torchrun(count), ["--backend", "ddp", "--transport", "gloo"]))
        ways.append(("Horovod over Gloo", count, horovodrun(count), ["--backend", "horovod"]))
    found: list[dict[str, Any]] = []
    steps = str(max(2, sizes.run_steps // 10))
    common = ["--dataset", sizes.beside_curves, "--batch", batch, "--system-interval-s", "0"]
    common += ["--steps", steps, "--warmup-steps", str(sizes.warmup_steps), *work.best]
    for name, count, launcher, extra in ways:
        row: dict[str, Any] = {"through": name, "workers": count, "samples_per_s": None, "why": None}
        if work.left_s < 8 and not work.dry:
            row["why"] = "no time was left"
        elif not shutil.which(str(launcher[0])):
            row["why"] = f"{Path(launcher[0]).name} is not installed"
        else:
            try:
                result, _, _ = trained(work, *common, *extra, launcher=launcher)
                kept = ("samples_per_s", "step_ms_median", "step_ms_p90", "laps_ms", "backend", "transport", "test_mse")
                row |= {each: result[each] for each in kept}
            except Failed as error:
                row["why"] = str(error)
        say(f"  {name}, {count} workers: {row['why'] or format(row['samples_per_s'], ',.0f') + ' samples/s'}")
        found.append(row)
    if all(row["samples_per_s"] is None for row in found):
        raise Failed("; ".join(dict.fromkeys(str(row["why"]) for row in found)))
    return {"batch": int(batch), "runs": found}


def measure_scaling(work: Work) -> dict[str, Any]:
    """Workers with a GPU each, 1, 2, 4 ... of them: every way and count in each round, for as many as there is time.

    Then the all-reduce of the gradients between all of them, through each runtime.
    """
    sizes, batch = work.sizes, str(work.sizes.batches[0])
    counts = sorted({*(2**power for power in range(1, work.gpus.bit_length()) if 2**power <= work.gpus), work.gpus})
    nccl = ["--backend", "ddp", "--transport", "nccl"]
    launchers: dict[str, tuple[Callable[[int], list[str | Path]], list[str]]] = {
        "torch DDP, in the graph": (torchrun, [*nccl, "--capture-sync"]),
        "torch DDP": (torchrun, nccl),
        "Horovod": (horovodrun, ["--backend", "horovod", "--transport", "nccl"]),
    }
    if work.dry:
        launchers = {"torch DDP": (torchrun, ["--backend", "ddp", "--transport", "gloo"])}
    common = ["--dataset", sizes.beside_curves, "--batch", batch, "--system-interval-s", "0"]
    common += ["--steps", str(sizes.run_steps), "--warmup-steps", str(sizes.warmup_steps), *work.best]
    plan: list[tuple[str, int, list[str | Path], list[str]]] = [("one worker", 1, [], [])]
    plan += [(name, each, start(each), more) for each in counts for name, (start, more) in launchers.items()]
    runs: list[dict[str, Any]] = []
    failed: dict[tuple[str, int], str] = {}
    began = now()
    for number in range(sizes.epoch_rounds):
        if number and (now() - began) * (number + 1) / number > 0.7 * (work.ends_at - began):
            break
        for name, workers, launcher, more in plan:
            if (name, workers) in failed:
                continue
            try:
                own = replace(work, ends_at=min(work.ends_at, now() + SCALING_RUN_S))
                result, record, _ = trained(own, *common, *more, launcher=launcher)
            except Failed as error:
                failed[name, workers] = str(error)
                say(f"  {name}, {workers}: {error}")
                continue
            kept = {each: result[each] for each in ("samples_per_s", "step_ms_median", "laps_ms", "test_mse")}
            path = " and ".join(record["effective"].get("path") or ())
            runs.append({"way": name, "workers": workers, "round": number, "path": path, **kept})
            say(f"  round {number + 1}, {name}, {workers}: {result['samples_per_s']:,.0f} samples/s")
    if not any(row["workers"] > 1 for row in runs):
        raise Failed("; ".join(dict.fromkeys(failed.values())) or "no time was left")
    missing = [{"way": name, "workers": workers, "why": why} for (name, workers), why in failed.items()]
    through = ("ddp/gloo",) if work.dry else ("ddp/nccl", "horovod/nccl")
    exchanged = exchanges(work, through, workers=work.gpus) if work.left_s > 20 or work.dry else []
    return {"batch": int(batch), "runs": runs, "missing": missing, "exchange": exchanged}


def measure_limits(work: Work) -> dict[str, Any]:
    """What the GPU can do at best, and where the step is between."""
    sizes = work.sizes
    # Without a GPU one worker has nothing to measure.
    ways = ["--workers", *(["2", "--transport", "gloo"] if work.dry else ["1", "--transport", "nccl"]), "--runtime"]
    seconds = "1" if work.dry else "6"
    more = ["--sizes", "4", "64K"] if work.dry else []
    found = verb(
        work,
        *("bench", *ways, *more, "--batch", str(sizes.batches[0]), "--seconds", seconds),
        *("--rounds", "3", "--out", work.folder / "bench"),
    )
    roofline = found["roofline"]
    return {
        "launch": found["launch"],
        "copies": found["copies"],
        "peaks_flop_per_s": roofline["peaks_flop_per_s"] if roofline else {},
        "memory_bytes_per_s": roofline["memory_bytes_per_s"] if roofline else None,
        "steps": steps_and_limits(work, found),
        "unavailable": found["unavailable"],
        "doubts": found["doubts"],
    }


def steps_and_limits(work: Work, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return where the steps of section `step` are between launching, moving and computing; [] where not known.

    Launches of captured steps take what they take in a graph, those of others what a call takes; the matrix peak is
    that of their precision.
    """
    measured, launch, roofline = work.found.get("step", {}).get("result"), found["launch"], found["roofline"]
    if not measured or not launch or not roofline:
        return []
    from horovod_study.programs.microbench import step_roofline  # loads PyTorch

    rows = []
    for batch, each in measured["batches"].items():
        for row in each["ways"]:
            if row["step_s"] is None or row["way"] == "plain loop, DataLoader":
                continue
            captured = row["way"].startswith(("graphs", "fused"))
            precision = next((name for name in ("tf32", "bf16", "fp16") if row["way"].endswith(name)), "float32")
            stands = step_roofline(
                step_s=row["step_s"]["median"],
                widths=parse_widths(DEFAULT_WIDTHS),
                batch=int(batch),
                launches=row["launches"],
                launch_each_s=launch["graph_s"] if captured else launch["eager_s"],
                bytes_per_s=roofline["memory_bytes_per_s"],
                flop_per_s=roofline["peaks_flop_per_s"][precision],
                kernels="fused" if row["way"].startswith("fused") else "torch",
            )
            rows.append({"way": row["way"], "batch": int(batch), **stands})
    return rows


def measure_energy(work: Work) -> dict[str, Any]:
    """Joules per epoch: by the GPU's counter, and by the integral of its power."""
    found = []
    for batch in work.sizes.batches:
        result, record, _ = trained(
            *(work, "--dataset", work.sizes.curves, "--batch", str(batch), "--seconds", str(work.sizes.energy_s)),
            *("--warmup-steps", str(work.sizes.warmup_steps), "--system-interval-s", "0.1", *work.best),
        )
        energy = record["totals"]["energy"]
        curves = result["steps"] * batch
        per_epoch = record["effective"]["steps_per_epoch"] * batch / curves
        found.append(
            {
                "batch": batch,
                "window_s": result["window_s"],
                "epochs": 1 / per_epoch,
                **{
                    f"{name}_per_epoch_j": None if energy[f"{name}_j"] is None else energy[f"{name}_j"] * per_epoch
                    for name in ("counter", "integral", "total")
                },
                **{name: energy[name] for name in ("devices", "reason", "doubt")},
                "per_device": energy["per_device"],
            }
        )
    return {"runs": found}


def measure_waits(work: Work) -> dict[str, Any]:
    """Calls in the hot loop at which the host waits for the GPU."""
    found = []
    small = ["--dataset", work.sizes.beside_curves, "--batch", str(work.sizes.batches[0]), "--system-interval-s", "0"]
    small += ["--steps", "100", "--warmup-steps", "10"]
    for name, options in (("captured", work.best), ("not captured", ("--loader", "device"))):
        _, _, out = trained(work, *small, *options, "--profile", "sync-points", "--profile-steps", "50")
        files = sorted(out.glob("profile/*sync-points*.csv"))
        if not files:
            raise Failed("the detector wrote no table")
        places = files[0].read_text(encoding="utf-8").splitlines()[1:]
        found.append({"steps": name, "places": len(places), "first": places[:5]})
    return {"runs": found}


SECTIONS = (
    Section(name="smoke", part="facts", measure=measure_smoke, least_s=20, most_s=240),
    Section(name="correctness", part="tests", measure=measure_correctness, least_s=30, most_s=450),
    Section(name="data", part="targets", measure=measure_data, least_s=5, most_s=90),
    Section(name="step", part="targets", measure=measure_step, least_s=35, most_s=130),
    Section(name="epochs", part="targets", measure=measure_epochs, least_s=35, most_s=180),
    Section(name="timers", part="targets", measure=measure_timers, least_s=25, most_s=60),
    Section(name="exchange", part="horovod", measure=measure_exchange, least_s=20, most_s=90),
    Section(name="workers", part="horovod", measure=measure_workers, least_s=20, most_s=120),
    Section(name="scaling", part="horovod", measure=measure_scaling, least_s=60, most_s=240, several=True),
    Section(name="limits", part="limits", measure=measure_limits, least_s=20, most_s=60),
    Section(name="energy", part="limits", measure=measure_energy, least_s=20, most_s=40),
    Section(name="waits", part="limits", measure=measure_waits, least_s=15, most_s=50),
    Section(name="compile", part="limits", measure=measure_compile, least_s=45, most_s=100),
    Section(name="kernels", part="limits", measure=measure_kernels, least_s=45, most_s=220),
)
"""In the order in which they are measured: the most important first. What the sections of a part take at most is less
than the 500 s that a part has."""

PARTS = tuple(dict.fromkeys(each.part for each in SECTIONS))


def sections_of(part: str | None, only: str, *, gpus: int) -> list[Section]:
    """Return the sections of a part, or all, whose names match `only` and that have a place with so many GPUs."""
    asked = [each for each in SECTIONS if part in (None, each.part) and re.search(only, each.name)]
    return [each for each in asked if gpus > 1 or not each.several]


# ------------------------------------------------------------------------------------------------ the whole


def begun(out: Path, *, dry: bool) -> dict[str, Any]:
    """Return the document that `out` has, or an empty one; a dry run and real results are never together.

    Sections of earlier runs stay until they are measured again, each with the number of the machine it was measured on.
    """
    with suppress(OSError, ValueError):
        before: dict[str, Any] = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
        if before.get("schema") == SCHEMA and before["dry_run"] == dry:
            return before
    return {"schema": SCHEMA, "dry_run": dry, "machines": {}, "sections": {}, "ran": []}


def number_of(machine: Mapping[str, Any], document: dict[str, Any]) -> str:
    """Return the number under which `document` has this machine from now on; with other sources it is another one."""
    machines = document["machines"]
    same = (number for number, each in machines.items() if gpu_table.identity(each) == gpu_table.identity(machine))
    number = next(same, str(1 + max(map(int, machines), default=0)))
    machines[number] = dict(machine)
    return number


def enter(document: dict[str, Any], name: str, entry: Mapping[str, Any]) -> None:
    """Put a section in the place of what was there; one that found no time replaces nothing."""
    if entry["status"] != "not run" or name not in document["sections"]:
        document["sections"][name] = dict(entry)


def add(results: Sequence[Path], out: Path) -> None:
    """Add the sections of results files, the latest last, to those that `out` has."""
    for path in results:
        other = json.loads(path.read_text(encoding="utf-8"))
        document = begun(out, dry=other["dry_run"])
        document |= {name: other[name] for name in ("measured", "status")}
        for name, entry in other["sections"].items():
            number = number_of(other["machines"][entry["machine"]], document)
            enter(document, name, {**entry, "machine": number})
        write(document, out)


def gpus_of(pytorch: Mapping[str, Any], *, dry: bool) -> int:
    """Return how many GPUs there are; a dry run plays two."""
    return 2 if dry else int(pytorch.get("gpus", 1))


def limit_of(sections: Sequence[Section], left_s: float) -> float:
    """Return the seconds that the first of `sections` gets of those left for all: what it needs at most, or a share."""
    share = left_s * sections[0].most_s / sum(each.most_s for each in sections)
    return min(left_s, sections[0].most_s, max(sections[0].least_s, share))


def measure(
    sections: Sequence[Section],
    *,
    sizes: Sizes,
    dry: bool,
    deadline_s: float,
    out: Path,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Measure `sections` in `deadline_s` seconds; return the document, which `out` has after every section."""
    began = now()
    document = begun(out, dry=dry)
    number = number_of(machine, document)
    document |= {"measured": utc_now(), "status": "unfinished", "ran": [each.name for each in sections]}
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = python_path()
    if dry:
        environ["HOROVOD_STUDY_REPLAY_ON_HOST"] = "1"
    for place, section in enumerate(sections):
        left_s = deadline_s - RESERVE_S - (now() - began)
        entry: dict[str, Any] = {"part": section.part, "status": "not run", "why": "", "seconds": 0.0, "result": None}
        entry |= {"machine": number, "measured": utc_now()}
        if left_s < section.least_s and not dry:
            entry["why"] = f"no time was left: {max(0.0, left_s):.0f} s, and it takes at least {section.least_s:.0f} s"
        else:
            say(f"[{now() - began:.0f} s] {section.name}")
            opened = now()
            with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
                work = Work(
                    sizes=sizes,
                    dry=dry,
                    folder=Path(folder),
                    environ=environ,
                    ends_at=now() + max(1.0, left_s if dry else limit_of(sections[place:], left_s)),
                    fused=not machine["pytorch"]["not_fused"],
                    gpus=gpus_of(machine["pytorch"], dry=dry),
                    found={name: each for name, each in document["sections"].items() if each["machine"] == number},
                )
                entry |= outcome(section, work)
            entry["seconds"] = now() - opened
        if entry["why"]:
            say(f"  {section.name}: {entry['status']}: {entry['why']}")
        enter(document, section.name, entry)
        write(document, out)
    document["status"] = "finished"
    write(document, out)
    return document


def outcome(section: Section, work: Work) -> dict[str, Any]:
    """Measure a section; return its status with the result, or why there is none."""
    try:
        return {"status": "done", "result": section.measure(work)}
    except LeftOut as error:
        return {"why": str(error)}
    except Failed as error:
        return {"status": "failed", "why": str(error)}
    except Exception as error:  # one section never costs the others
        return {"status": "failed", "why": f"{type(error).__name__}: {error}"[:500]}


def write(document: dict[str, Any], out: Path) -> None:
    """Write gpu.json and gpu.md, each completely or not at all."""
    sections = document["sections"]
    document["sections"] = {each.name: sections.pop(each.name) for each in SECTIONS if each.name in sections} | sections
    used = {each["machine"] for each in document["sections"].values()}
    document["machines"] = {number: each for number, each in document["machines"].items() if number in used}
    try:
        document["targets"] = gpu_table.targets(document)
        page = gpu_table.markdown(document)
    except Exception as error:  # a result of another form than expected costs no other section
        page = f"The table could not be made ({type(error).__name__}: {error}); all that was found is in gpu.json.\n"
        document |= {"targets": [], "status": page}
        say(page.strip())
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(records.finite(document), indent=1, allow_nan=False) + "\n"
    write_file(out / "gpu.json", text)
    write_file(out / "gpu.md", page)


def python_path() -> str:
    """Return where programs find this project, which need not be installed, before what the environment names."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def ask_pytorch(dry: bool) -> dict[str, Any]:
    """Return what PyTorch says of itself and the GPU, TORCH_FACTS, or {"why_not": a line}; a program of its own asks.

    In a dry run nobody is asked; it has the fused kernels only in Triton's interpreter.
    """
    if dry:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return {"not_fused": "" if interpreted else "a dry run has them only with TRITON_INTERPRET=1"}
    try:
        line = [sys.executable, "-c", TORCH_FACTS]
        environ = {**os.environ, "PYTHONPATH": python_path()}
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environ)
    except subprocess.SubprocessError as error:
        return {"why_not": f"PyTorch did not answer: {error}"}
    if done.returncode:
        return {"why_not": f"PyTorch cannot be loaded by {sys.executable}: {last_words(done.stderr)}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if "gpu" not in found:
        built = f"built for CUDA {found['cuda']}" if found["cuda"] else "built without CUDA"
        return {"why_not": f"PyTorch {found['torch']} ({built}) sees no GPU"}
    return found


def stopped(number: int, frame: object) -> NoReturn:
    """End on SIGTERM as on an error: the programs of the section end too, and the results so far are in --out."""
    ENDING.set()
    raise SystemExit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deadline-s", type=float, default=500.0, help="seconds for all of it (default 500)")
    parser.add_argument("--curves", help=f"size of the data set (default {REAL.curves}; {DRY.curves} in a dry run)")
    parser.add_argument("--part", choices=PARTS, help="only the sections of this part (default: all)")
    parser.add_argument("--only", default="", help="of them, only sections whose name matches this regular expression")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny sizes: promises nothing")
    parser.add_argument("--out", type=Path, help="where gpu.json and gpu.md go (default benchmarks/results/gpu)")
    parser.add_argument(
        "--add", type=Path, nargs="+", metavar="RESULTS.json", help="add these to those in --out, and end"
    )
    parser.add_argument("--table", type=Path, metavar="RESULTS.json", help="print the table of these results, and end")
    options = parser.parse_args(arguments)
    if options.table is not None:
        print(gpu_table.markdown(json.loads(options.table.read_text(encoding="utf-8"))), end="")
        return 0
    results = HERE / "results"
    out = options.out or results / "gpu"
    if options.add:
        add(options.add, out)
        return 0
    if options.dry_run and (options.out is None or results in (out.resolve(), *out.resolve().parents)):
        say("error: a dry run is not a result; name a folder outside benchmarks/results with --out")
        return 2
    pytorch = ask_pytorch(options.dry_run)
    if "why_not" in pytorch:
        say(
            f"error: {pytorch['why_not']}; run this on a machine with an NVIDIA GPU, or try it with --dry-run --out DIR"
        )
        return 2
    if pytorch["not_fused"]:
        say(f"fused kernels are left out: {pytorch['not_fused']}")
    signal.signal(signal.SIGTERM, stopped)
    sizes = DRY if options.dry_run else REAL
    if options.curves:
        sizes = replace(sizes, curves=options.curves)
    document = measure(
        sections_of(options.part, options.only, gpus=gpus_of(pytorch, dry=options.dry_run)),
        sizes=sizes,
        dry=options.dry_run,
        deadline_s=options.deadline_s,
        out=out,
        machine=describe_machine(pytorch, os.environ.get("PATH")),
    )
    print((out / "gpu.md").read_text(encoding="utf-8"))
    say(f"written to {out / 'gpu.md'} and .json")
    return gpu_table.exit_code(document) or int(document["status"] != "finished")


if __name__ == "__main__":
    sys.exit(main())
