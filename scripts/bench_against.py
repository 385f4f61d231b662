"""Time this tree against another revision, both by the same commands, one after the other in every round.

    python scripts/bench_against.py 1fdd4ff                      everything, some 13 minutes on two quiet cores
    python scripts/bench_against.py main~3 --only step start     parts of it
    python scripts/bench_against.py HEAD --out build/bench.md    also writes the table

The other revision is checked out by `git worktree` into a temporary folder, which is removed at the end, after Ctrl-C
too. Both run in this Python with their folder first on PYTHONPATH, on the same data and the same runs, which this tree
makes; their modules are compiled before anything is timed. The order of the two alternates from round to round. A
ratio is that of one round, this tree over the other revision; its median and spread are over the rounds.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
TRAINER = ("-m", "horovod_study.train")
VERB = ("-m", "horovod_study.cli")
PATIENCE_S = 600
LOOP = ("20", "64", "32")
"""Layers, width and batch of the loop that is recorded (benchmarks/recorded_loop.py)."""
BLOCK_STEPS, COLD_STEPS = 40, 10
STARTED = {
    "horovod/mpi": ("horovodrun", "--mpi", "-np", "2"),
    "horovod/gloo": ("horovodrun", "--gloo", "-np", "2"),
    "ddp/gloo": ("torchrun", "--nproc-per-node", "2", "--no-python"),
    "mpi/mpi": ("mpirun", "-np", "2"),
    "ps/mpi": ("mpirun", "-np", "2"),
}
"""How two workers of a runtime are started."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two trees: how its programs are started."""

    name: str
    tree: Path
    scratch: Path  # of this side alone

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its programs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.tree),
            "PYTHONPYCACHEPREFIX": str(self.scratch / "pycache"),
            "HOROVOD_STUDY_DATA": str(self.scratch / "data"),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def start(self, *command: object, **streams: Any) -> "subprocess.Popen[str]":
        """Start a command in a session of its own, in this side's folder."""
        return subprocess.Popen(
            [str(part) for part in command],
            text=True,
            cwd=self.scratch,
            env=self.environment,
            start_new_session=True,
            **streams,
        )

    def said(self, *command: object) -> str:
        """Run a command and return what it printed; RuntimeError: it failed."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            end(process)
        if process.returncode:
            said = (errors or out).strip()[-500:]
            raise RuntimeError(f"{self.name}: {' '.join(map(str, command))} ended with {process.returncode}: {said}")
        return out

    def seconds(self, *command: object) -> float:
        """Return the seconds of a whole command."""
        began = time.perf_counter()
        self.said(*command)
        return time.perf_counter() - began


def end(process: "subprocess.Popen[str]") -> None:
    """End a process with all that it started; launchers are given time to end their ranks on this."""
    for number, wait_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        if process.poll() is not None:
            break
        with suppress(OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(wait_s)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None and not stream.closed:
            with suppress(OSError):
                stream.close()


@dataclass(kw_only=True)
class Row:
    """One quantity: its values on both sides, round by round."""

    what: str
    unit: str
    better: str = "less"  # or "more"
    signed: bool = False  # near or below zero, where a ratio says nothing: the difference is shown
    here: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return the cells of its row in the table."""
        pairs = list(zip(self.here, self.there, strict=True))
        between = spread([here - there for here, there in pairs] if self.signed else [a / b for a, b in pairs if b])
        last = f"{between} {self.unit} more" if self.signed else between
        return [f"{self.what}, {self.unit}", self.better, spread(self.here), spread(self.there), last]


def spread(values: Sequence[float]) -> str:
    """Return median, least and largest."""
    if not values:
        return ""
    numbers = (statistics.median(values), min(values), max(values))
    return "{} ({} - {})".format(*(f"{each:,.0f}" if abs(each) >= 1000 else f"{each:.3g}" for each in numbers))


Sides = tuple[Side, Side]


def rounds_of(sides: Sides, rounds: int, measure: Callable[[Side], Sequence[float]], rows: Sequence[Row]) -> None:
    """Measure both sides `rounds` times, the order turned round each time; a value of `measure` for each row."""
    for number in range(rounds):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            for row, value in zip(rows, measure(sides[place]), strict=True):
                (row.here, row.there)[place].append(value)


# --- what is measured -------------------------------------------------------------------------------------------------


def _rate(side: Side, *options: object, launcher: Sequence[object] = ()) -> float:
    """Return the samples/s of a training of about three seconds."""
    out = side.scratch / "run"
    training = ("--dataset", 20_000, "--batch", 75, "--seconds", 3, "--device", "cpu", "--no-checkpoint-at-end")
    said = side.said(*launcher, sys.executable, *TRAINER, *training, "--json", "--out", out, *options)
    shutil.rmtree(out)
    return float(json.loads(said[said.index("{") : said.rindex("}") + 1])["samples_per_s"])


def step(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """One worker, with PyTorch's kernels and with the native step."""
    rows = [Row(what=f"step, kernels {kernels}", unit="samples/s", better="more") for kernels in ("torch", "native")]
    rounds_of(sides, rounds, lambda side: [_rate(side, "--kernels", kernels) for kernels in ("torch", "native")], rows)
    return rows


def throughput(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """Two workers over every runtime of this machine, with the settings that ship."""
    rows = [Row(what=f"two workers, {runtime}", unit="samples/s", better="more") for runtime in STARTED]

    def measure(side: Side) -> list[float]:
        rates = []
        for runtime, (program, *options) in STARTED.items():
            backend, transport = runtime.split("/")
            chosen = ("--backend", backend, "--transport", transport)
            rates.append(_rate(side, *chosen, launcher=(BIN / program, *options)))
        return rates

    rounds_of(sides, rounds, measure, rows)
    return rows


class Loop:
    """benchmarks/recorded_loop.py, which makes steps when it is asked to; recorded by a side, or by nobody."""

    def __init__(self, side: Side, *, recorded: bool) -> None:
        record = ("-m", "horovod_study.cli", "record", "--out", side.scratch / "recorded", "--", sys.executable)
        program = (ROOT / "benchmarks" / "recorded_loop.py", *LOOP)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = side.start(sys.executable, *(record if recorded else ()), *program, **streams)

    def step_us(self) -> float:
        """Return the median step of a block, without the first ones, whose caches are cold."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{BLOCK_STEPS}\n")
        self.process.stdin.flush()
        times = json.loads(self.process.stdout.readline())[COLD_STEPS:]
        return float(1e6 * statistics.median(each for each, _ in times))


def recording(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """What `record --` adds to a step of a plain loop, which runs beside both."""
    rows = [Row(what="recorded step", unit="us"), Row(what="added by recording", unit="us", signed=True)]
    loops = [Loop(side, recorded=True) for side in sides]
    plain = Loop(sides[0], recorded=False)
    try:
        for loop in (*loops, plain):
            loop.step_us()

        def measure(side: Side) -> list[float]:
            before, recorded, after = plain.step_us(), loops[sides.index(side)].step_us(), plain.step_us()
            return [recorded, recorded - (before + after) / 2]

        rounds_of(sides, rounds * 15, measure, rows)
    finally:
        for loop in (*loops, plain):
            with suppress(OSError):
                if loop.process.stdin is not None:
                    loop.process.stdin.close()  # no more steps: the loop ends, and its record with it
            with suppress(subprocess.TimeoutExpired):
                loop.process.wait(10)
            end(loop.process)
    return rows


def ledger(sides: Sides, rounds: int, _: Path) -> list[Row]:
    """Plan and state of a study of CELLS cells, the state read for the first time and again."""
    rows = [Row(what=f"{CELLS:,} cells, {what}", unit="s") for what in ("plan", "status", "status again")]
    for side in sides:  # each has cells of its own: their keys hold the digest of the code
        (side.scratch / "cells").mkdir()
        _made(
            side,
            "import sys; from pathlib import Path; import ledger;"
            "from horovod_study.studies.study_file import load_study;"
            "place = Path(sys.argv[1]); file = place / 'many.yaml';"
            "file.write_text(ledger.study_text(int(sys.argv[2])));"
            "study = load_study(file); ledger.fake_runs(study.cells(), place / 'runs' / study.name)",
            side.scratch / "cells",
            CELLS,
        )

    def measure(side: Side) -> list[float]:
        place = side.scratch / "cells"
        status = (sys.executable, *VERB, "status", place / "many.yaml", "--runs", place / "runs")
        for kept in (place / "runs").glob("*/.ledger.json"):
            kept.unlink()
        plan = side.seconds(
            sys.executable, *VERB, "run", "--plan", place / "many.yaml", "--runs", side.scratch / "empty"
        )
        return [plan, side.seconds(*status), side.seconds(*status)]

    rounds_of(sides, rounds, measure, rows)
    return rows


def tables(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """The tables of ROWS step rows."""
    _made(
        sides[0],
        "import sys; from pathlib import Path; import analysis;"
        "analysis.write_runs(Path(sys.argv[1]) / 'rows', runs=10, rows=int(sys.argv[2]))",
        shared,
        ROWS,
    )
    row = Row(what=f"tables of {ROWS:,} step rows", unit="s")
    rounds_of(sides, rounds, lambda side: [_report(side, "--tables", shared / "rows")], [row])
    return [row]


def report(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """The whole report of RUNS runs."""
    _made(
        sides[0],
        "import sys; from pathlib import Path; import report; number = int(sys.argv[2]);"
        "about = min(report.STUDIES, key=lambda each: abs(each - number));"
        "report.write_study(Path(sys.argv[1]) / 'many', steps=report.STEPS, seed=about, **report.STUDIES[about])",
        shared,
        RUNS,
    )
    row = Row(what=f"report of {len(list((shared / 'many').iterdir())):,} runs", unit="s")
    rounds_of(sides, max(1, rounds // 2), lambda side: [_report(side, shared / "many")], [row])
    return [row]


def start(sides: Sides, rounds: int, shared: Path) -> list[Row]:
    """Whole commands that do next to nothing."""
    file = shared / "few.yaml"
    file.write_text("study: few\nrun: {seconds: 1}\nsweep: {workers: [1], runtime: horovod/mpi}\n")
    commands: dict[str, tuple[object, ...]] = {
        "import horovod_study": ("-c", "import horovod_study"),
        "horovod-study --help": (*VERB, "--help"),
        "horovod-study status": (*VERB, "status", file, "--runs", shared / "none"),
    }
    rows = [Row(what=what, unit="s") for what in commands]
    rounds_of(
        sides,
        3 * rounds,
        lambda side: [side.seconds(sys.executable, *command) for command in commands.values()],
        rows,
    )
    return rows


PARTS = {part.__name__: part for part in (step, throughput, recording, ledger, tables, report, start)}
CELLS, ROWS, RUNS = 10_000, 1_000_000, 1_000


def _made(side: Side, program: str, *arguments: object) -> None:
    """Make runs by what benchmarks/ of a side's own tree has for it."""
    paths = "".join(f"sys.path.append({str(side.tree / name)!r});" for name in ("benchmarks", "tests"))
    side.said(sys.executable, "-c", f"import sys;{paths}{program}", *arguments)


def _report(side: Side, *asked: object) -> float:
    out = side.scratch / "analysis"
    seconds = side.seconds(sys.executable, *VERB, "report", *asked, "--out", out)
    shutil.rmtree(out)
    return seconds


# --- both trees -------------------------------------------------------------------------------------------------------


def revision(name: str) -> str:
    """Return the commit that a name means; SystemExit with code 2 and one line where there is none."""
    asked = ("git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        _refuse(f"there is no revision {name!r} in {ROOT}; name a commit, a branch or a tag")
    return done.stdout.strip()


def _refuse(why: str) -> NoReturn:
    print(f"bench_against: {why}", file=sys.stderr)
    raise SystemExit(2)


def native_sources(tree: Path) -> str:
    """Return a digest of what the native step is compiled from, wherever in the package it is."""
    files = sorted(
        (path.name, path.read_bytes()) for path in (tree / "horovod_study").rglob("*") if path.suffix in (".cpp", ".h")
    )
    return hashlib.sha256(repr(files).encode()).hexdigest()


def notes(sides: Sides) -> list[str]:
    """Return what has to be said beside the table; RuntimeError: a side would run another tree than its own."""
    for side in sides:
        found = side.said(sys.executable, "-c", "import horovod_study; print(horovod_study.__file__)").strip()
        if not Path(found).is_relative_to(side.tree):
            raise RuntimeError(f"{side.name}: horovod_study is imported from {found}, not from {side.tree}")
    if native_sources(sides[0].tree) == native_sources(sides[1].tree):
        return ["The native step has the same sources on both sides."]
    return [
        "The sources of the native step differ: on both sides it is the library that `make setup` built for this tree, "
        "and only how it is called is compared."
    ]


def lines(rows: Iterable[Row], name: str, told: Sequence[str]) -> list[str]:
    """Return the table."""
    head = ("what", "better", "this tree", name, f"this tree / {name}")
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * 2}{'--:|' * 3}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
        "Median (least - largest); the last column is of the ratios (or differences) round by round.",
        *told,
    ]


def measured(sides: Sides, parts: Sequence[str], rounds: int, shared: Path) -> list[Row]:
    """Return the rows of these parts; a part that one of the sides cannot do is said, and left out."""
    found: list[Row] = []
    for part in parts:
        began = time.perf_counter()
        try:
            rows = PARTS[part](sides, rounds, shared)
        except RuntimeError as error:
            print(f"{part}: left out: {error}", file=sys.stderr, flush=True)
            continue
        found += rows
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Measure both and print the table; 2: there is no such revision, 130: interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revision", metavar="REV", help="a commit, branch or tag to compare this tree with")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each part (default 4)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table to FILE too")
    options = parser.parse_args()
    if options.rounds < 1:
        _refuse(f"--rounds {options.rounds}: give 1 or more")
    commit = revision(options.revision)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="bench-against-") as name:
        tree, shared = Path(name) / "tree", Path(name) / "shared"
        git = ("git", "-C", str(ROOT), "worktree")
        try:
            subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
            sides = (
                Side(name="this tree", tree=ROOT, scratch=Path(name) / "here"),
                Side(name=re.sub(r"\|", "", options.revision), tree=tree, scratch=Path(name) / "there"),
            )
            for folder in (shared, *(side.scratch for side in sides)):
                folder.mkdir()
            told = notes(sides)
            for side in sides:
                side.said(sys.executable, "-m", "compileall", "-q", side.tree / "horovod_study")
            rows = measured(sides, options.only or tuple(PARTS), options.rounds, shared)
        except KeyboardInterrupt:
            print("bench_against: interrupted; nothing is left of it", file=sys.stderr)
            return 130
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True)
            subprocess.run([*git, "prune"], capture_output=True)
    text = "\n".join(lines(rows, sides[1].name, told)) + "\n"
    print(text, end="")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
