"""Plant one fault at a time in a copy of the package, and see whether its tests notice: 40 faults, each in one line.

    .venv/bin/python scripts/mutants.py [WORD...]     only the faults whose file or lines contain one of the words

Prints of each fault whether its tests caught it, and ends with 1 where one survived. Faults are kept as text: one whose
line is no longer there is an error, to be mended here. What every fault needs is loaded once, then the process forks.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import pandas
import pyarrow
import pytest
import scipy.special
import torch
from hypothesis import HealthCheck, Phase, settings

LOADED = (numpy, pandas, pyarrow, scipy.special, torch)
ROOT = Path(__file__).resolve().parents[1]
# One failure is enough: it is not explained, and no smaller example is looked for, which can take minutes.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=40,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
QUIETLY = (
    *("--hypothesis-profile", "mutants"),
    *("-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no", "-o", "timeout=120"),
)
LEFT_OUT = "not slow and not horovod and not cluster"
STATS, COSTS, POINTS = "analysis/stats.py", "analysis/costs.py", "analysis/series/points.py"
SPLIT, USL, LEDGER = "analysis/steps/breakdown.py", "analysis/laws/costs.py", "studies/ledger.py"
RECORD, WRITER = "records/model.py", "records/writer.py"
BASE, MPI, LIVENESS = "comm/base.py", "comm/mpi.py", "comm/liveness.py"
DATASET = "strain/dataset.py"

TESTS = {
    STATS: ("test_stats.py",),
    COSTS: ("test_costs.py",),
    POINTS: ("test_points.py",),
    SPLIT: ("test_breakdown.py",),
    USL: ("test_laws.py", "test_fitting.py"),
    LEDGER: ("test_ledger.py",),
    **dict.fromkeys((RECORD, WRITER), ("test_records.py", "test_recorder.py")),
    **dict.fromkeys((BASE, MPI), ("test_comm.py",)),
    LIVENESS: ("test_liveness.py",),
    DATASET: ("test_dataset.py",),
}

FAULTS = (  # file, what the line says, what it says instead
    (STATS, "return self.low > value or self.high < value", "return self.low > value and self.high < value"),
    (STATS, "value=-self.value, low=-self.high, high=-self.low)", "value=-self.value, low=-self.low, high=-self.high)"),
    (STATS, "return t_quantile(0.5 + level / 2, freedom) * error", "return t_quantile(level, freedom) * error"),
    (STATS, "flat.std(ddof=1)) / math.sqrt(n)", "flat.std()) / math.sqrt(n)"),
    (STATS, "t_quantile(0.5 + level / 2, float(n - 1))", "t_quantile(0.5 + level / 2, float(n))"),
    (STATS, "low=value - math.hypot(a.value - a.low,", "low=value - math.hypot(a.high - a.value,"),
    (STATS, "squares = each**2 / freedom", "squares = each / freedom"),
    (STATS, "math.sqrt(MEDIAN_VARIANCE * variance)", "math.sqrt(variance)"),
    (STATS, "variance = max(own, (prior", "variance = min(own, (prior"),
    (COSTS, "return 2 * (n - 1) / n", "return (n - 1) / n"),
    (COSTS, "return np.ceil(np.log2(n) - 1e-9) + 0.0", "return np.floor(np.log2(n) - 1e-9) + 0.0"),
    (COSTS, '"Rabenseifner": float(2 * rounds(n)', '"Rabenseifner": float(rounds(n)'),
    (COSTS, "alpha_s=alpha_s / rounds(n), bytes", "alpha_s=alpha_s, bytes"),
    (POINTS, "above = [kind for kind in kinds if several and row", "above = [kind for kind in kinds if row"),
    (POINTS, '_{kind}{name}": value / n for name', '_{kind}{name}": value for name'),
    (SPLIT, 'cell["batch"] / cell["ref_batch"]', 'cell["ref_batch"] / cell["batch"]'),
    (SPLIT, "each.var(axis=0, ddof=1) / len(each)", "each.var(axis=0, ddof=1)"),
    (USL, 'if values["beta"] * n > values["alpha"]', 'if values["beta"] > values["alpha"]'),
    (USL, "math.sqrt((1 - alpha) / beta))", "math.sqrt(1 / beta))"),
    (LEDGER, "if record.key != key:", "if False:"),
    (LEDGER, "(*BY_ITSELF, *(ON_RETRY if retry else ()))", "(*BY_ITSELF, *ON_RETRY)"),
    (LEDGER, "if wrong and (claim is None or", "if wrong and (claim is not None or"),
    (LEDGER, "(silent := silence_s()) or 0.0", "(silent := silence_s()) or math.inf"),
    (LEDGER, 'if job.state in _TOLD and state in ("incomplete", "stopped"):', "if job.state in _TOLD:"),
    (LEDGER, 'if job.state == "out of memory" and state == "incomplete":', "if False:"),
    (LEDGER, "if found is None or found.mine else", "if found is None else"),
    (LEDGER, "holder.restarts >= job.restarts", "holder.restarts <= job.restarts"),
    (RECORD, "if not known or len(known) < len(values):", "if not known:"),
    (WRITER, 'last = {**last, "status": "incomplete", "reason"', 'last = {**last, "status": "running", "reason"'),
    (WRITER, "self.kept = rows.slice(0, resume_at)", "self.kept = rows.slice(0, resume_at + 1)"),
    (RECORD, "sum(lost) if isinstance(lost, list)", "max(lost) if isinstance(lost, list)"),
    (WRITER, "return present - max(written, default=present)", "return present - min(written, default=present)"),
    (WRITER, "run_files(directory).items() if name != MANIFEST}", "run_files(directory).items()}"),
    (BASE, "self._share = 1 / workers", "self._share = 1.0"),
    (MPI, "self._missing[self._next] <= 0:", "self._missing[self._next] <= 1:"),
    (MPI, "for row in others[rank:]:", "for row in others[rank + 1:]:"),
    (MPI, "total * server // servers for server", "total // servers * server for server"),
    (DATASET, "(size != told, other)", "(size < told, other)"),
    (LIVENESS, "and waited_s < self._timeout_s * self.patience", "and waited_s < self._timeout_s"),
    (LIVENESS, "if not self._call or self._call is not call:", "if not self._call:"),
)


def plant(package: Path, file: str, old: str, new: str) -> str:
    """Change the one line of `file` that holds `old`, and return the whole text as it was."""
    path = package / file
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"mutants: {file} holds {text.count(old)} times {old!r}; name one line again in FAULTS")
    path.write_text(text.replace(old, new), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    return text


def tested(copy: Path, tests: tuple[str, ...]) -> int:
    """Run the tests of the package below `copy` in a process of their own; return pytest's exit code."""
    child = os.fork()
    if not child:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        paths = [str(ROOT / "tests" / name) for name in tests]
        os._exit(int(pytest.main([*QUIETLY, "-m", LEFT_OUT, *paths])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(words: list[str]) -> int:
    """Plant the faults that `words` choose, one after the other; return 1 where one survived."""
    chosen = [fault for fault in FAULTS if not words or any(word in " ".join(fault) for word in words)]
    os.chdir(ROOT)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants.") as folder:
        package = Path(folder) / "horovod_study"
        shutil.copytree(ROOT / "horovod_study", package)
        for file, old, new in chosen:
            whole = plant(package, file, old, new)
            code = tested(Path(folder), TESTS[file])
            (package / file).write_text(whole, encoding="utf-8")
            survived += code == 0
            print(f"{'survived' if code == 0 else 'caught  '}  {file}: {old}  ->  {new}", flush=True)
        sound = not chosen or tested(Path(folder), tuple(sorted({name for file, *_ in chosen for name in TESTS[file]})))
    if sound:
        print("mutants: the tests fail without a fault too, so the list above says nothing")
    print(f"{len(chosen) - survived} of {len(chosen)} faults caught")
    return int(bool(survived or sound))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
