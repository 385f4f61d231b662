"""The proof that parallel training equals sequential training: what is run, and the verdict on each case.

A case is one parallel training run of S steps: a runtime, N workers, a reduction, a precision, an optimiser, even or
uneven shards. docs/verify.md says what it must have in common with the sequential run, and why the averaged gradient
is looked at by itself: Adam divides it by its own size, so a sum in the place of a mean hardly moves the parameters.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from horovod_study.config.doors import Options, at_least
from horovod_study.config.run import available_cores
from horovod_study.errors import ConfigError, StudyError, refuse
from horovod_study.files import writing
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.bench import measured, run_ranks
from horovod_study.text.progress import say
from horovod_study.text.words import plural
from horovod_study.workload import dataset as data
from horovod_study.workload.options import StrainConfig, strain_config
from horovod_study.workload.schedule import scaled_lr

BOUNDS = {"float32": 1e-6, "float64": 1e-14}  # The largest relative error of a tensor that passes
_UNJUDGED = ("float32", "adam")
"""Precision and optimiser whose errors are shown but held to no bound; order, rate, start and operation are judged.

Adam divides each gradient by the root of its own mean square. Where a gradient is nearly 0, for instance in a unit that
one curve of the batch switches on, its relative rounding error is large and goes into the parameter undiminished; and
a rounding error may move the maximum of a pooling window to another point, which changes such gradients at once.
float64, with the same code, is judged.
"""
PARALLEL = tuple(runtime for runtime in RUNTIMES if runtime != "serial")
_RANKS_PER_CORE = 8  # more ranks than cores prove as much as few, but slowly
_SAME = ("order", "lr", "start", "operation")
_KNOWN = "runtime transport workers reduction dtype shards batch steps optimizer order_sha256".split()
_NEAR = 1e-3  # so near a factor of the gradient must be to N to be called a sum over N workers


class _ProofOptions(Options):
    workers: list[Annotated[int, at_least(1)]]
    steps: Annotated[int, at_least(1)]
    seed: Annotated[int, at_least(0)]


class Question(NamedTuple):
    """What is to be proven, under the names of the options; `runtime` None: whatever is available on this machine."""

    runtime: Sequence[str] | None = None
    workers: Sequence[int] = (2,)
    reduction: Sequence[str] = ("flat", "hooks")
    dtype: Sequence[str] = tuple(BOUNDS)
    optimizer: Sequence[str] = ("adam", "sgd")
    steps: int = 10
    batch: int = 300  # of all workers together
    dataset: str = "4000"
    lr_scaling: str = "none"
    input_scaling: str = "standard"
    kernels: str = "torch"  # of the parallel runs; the reference is always computed by torch's
    seed: int = 1
    broken: str | None = None  # sum, shard, lr or start

    def check(self, cores: int) -> None:
        """Raise ConfigError for what cannot be proven on so many cores."""
        _ProofOptions.of("bench equality", self._asdict())
        most, limit = max(self.workers), _RANKS_PER_CORE * cores
        least, native = 2 * most if most > 1 else 1, self.kernels == "native"
        what = "--kernels native computes in float32 and averages one flat buffer; add --dtype float32 --reduction flat"
        many = f"--workers {most} are more ranks than this machine has slots: {plural(cores, 'core')}, at most "
        small = f"--batch {self.batch} is too small for {plural(most, 'worker')}: uneven shards need at least "
        refuse(
            "bench equality",
            (native and [*self.reduction, *self.dtype] != ["flat", "float32"], f"{what}, or leave --kernels out"),
            (most > limit, f"{many}{_RANKS_PER_CORE} ranks on each; use --workers {limit} or fewer"),
            (self.batch < least, f"{small}{plural(least, 'curve')}; use a larger --batch or fewer --workers"),
            (self.broken and min(self.workers) < 2, f"--break {self.broken} needs two ranks; use --workers 2"),
        )

    def trials(self, workers: int, device: str = "cpu", *, alone: bool = False) -> list[dict[str, Any]]:
        """Return what is trained with so many workers: each with its sequential counterpart's rate and file.

        `alone`: those counterparts, whole batches at the rate that `workers` workers should have.
        """
        base = StrainConfig(lr_scaling=self.lr_scaling)
        rate = scaled_lr(base, workers)
        return [
            {
                "dtype": dtype,
                "optimizer": optimizer,
                "batch": batch,
                "shards": "even" if alone else shards,
                "lr": rate if alone else base.lr,
                "reference": f"{device}-{dtype}-{optimizer}-b{batch}-lr{rate!r}.npz",
            }
            for dtype in sorted({*self.dtype})
            for optimizer in sorted({*self.optimizer})
            for shards, batch in shares(self.batch, workers).items()
        ]


def shares(batch: int, workers: int) -> dict[str, int]:
    """Return the global batches for even and for uneven shards: the largest not above `batch` of each kind."""
    if workers == 1:
        return {"even": batch}
    return {"even": batch - batch % workers, "uneven": batch if batch % workers else batch - 1}


def verify(question: Question, out: Path | None = None, *, on_progress: Callable[[str], None] = say) -> dict[str, Any]:
    """Train sequentially, then with every runtime and worker count; return all cases with their verdicts, for JSON.

    Logs of the launches are kept below `out`/logs, or without `out` in a temporary folder as long as one failed. With
    `out` a proof that was interrupted goes on.
    Raises StudyError for a runtime that was asked for and cannot be used here, or does not run.
    """
    logs = Path(tempfile.mkdtemp(prefix="horovod-study-verify-")) if out is None else (out / "logs").absolute()
    scratch = logs / "references"
    with writing(scratch, "choose a writable --out", error=StudyError):
        scratch.mkdir(parents=True, exist_ok=True)
    finished = keep = False
    try:
        result = _verify(question, scratch, logs, on_progress)
        finished, keep = True, not all(case["tensors"] for case in result["cases"])
    except StudyError:
        keep = any(logs.glob("*/output.log"))
        raise
    finally:
        if finished:
            measured(logs)
        if finished or out is None:
            shutil.rmtree(scratch, ignore_errors=True)
        if out is None and not keep:
            shutil.rmtree(logs, ignore_errors=True)
    return result


def _verify(question: Question, scratch: Path, logs: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    cores, counts = available_cores(), sorted({*question.workers})
    question.check(cores)
    dataset = data.open_dataset(data.ensure(question.dataset, seed=StrainConfig().data_seed, threads=cores))
    batches = [trial["batch"] for count in counts for trial in question.trials(count)]
    data.Batches(dataset.train_size, batch=max(batches), rank=0, workers=1, seed=question.seed)  # for its complaint
    shared = {"dataset": str(dataset.path.absolute()), **{name: getattr(question, name) for name in ("steps", "seed")}}
    shared["input_scaling"] = question.input_scaling
    scaling = question.lr_scaling
    if question.broken == "lr":
        scaling = "none" if scaling == "linear" else "linear"
    references: dict[str, dict[str, Any]] = {}

    def launched(
        runtime: str, workers: int, trials: Sequence[Any], reductions: Sequence[str], device: str, **how: Any
    ) -> dict[str, Any]:
        backend, _, transport = runtime.partition("/")
        where = {"backend": backend, "transport": transport or "none", "device": device}
        job = {"trials": trials, "reductions": reductions, "folder": str(scratch), "write": runtime == "serial"}
        job |= {"break": question.broken, "config": vars(strain_config({**shared, **where, **how}))}
        return _launched(runtime, workers, job, logs)

    def train_alone(device: str) -> dict[str, Any]:
        trials = {one["reference"]: one for count in counts for one in question.trials(count, device, alone=True)}
        on_progress(f"sequential training, the reference: {question.steps} steps, {len(trials)} runs on {device}")
        alone = launched("serial", 1, list(trials.values()), ["auto"], device)
        references.update({one["reference"]: {**trials[one["reference"]], **one} for one in alone["references"]})
        return alone

    there = train_alone("cpu")
    runtimes, unavailable = usable(question.runtime, counts, there["runtimes"], gpus=there["gpus"])
    if any(_device(runtime) == "cuda" for runtime, _ in runtimes):
        train_alone("cuda")
    cases: list[dict[str, Any]] = []
    launches: list[tuple[str, int, list[str]]] = []
    for runtime, count in runtimes:  # starting takes longer than training, but torch starts one reduction per process
        one_by_one = [[each] for each in question.reduction]
        together = one_by_one if runtime.startswith("ddp/") else [[*question.reduction]]
        launches += [(runtime, count, each) for each in ([["auto"]] if count == 1 else together)]
    for number, (runtime, count, reductions) in enumerate(launches, start=1):
        known = {"runtime": runtime, "workers": count, "steps": question.steps}
        words = "" if {*reductions} >= {*question.reduction} or count == 1 else f", {reductions[0]}"
        head = f"[{number}/{len(launches)}] {runtime}, {plural(count, 'worker')}{words}"
        device = _device(runtime)
        how = {"lr_scaling": scaling, "kernels": question.kernels}
        try:
            found = launched(runtime, count, question.trials(count, device), reductions, device, **how)["cases"]
        except StudyError as error:
            if question.runtime is not None:
                raise
            unknown = dict.fromkeys((*_KNOWN, "lr", "gradient_factor", "float32_rounding", "worst"))
            told = {"tensors": [], "judged": True, "passed": False, "why": f"did not run: {error}"}
            cases.append({**unknown, **known, **dict.fromkeys((f"same_{name}" for name in _SAME), False), **told})
            on_progress(f"{head}: {error}")
            continue
        judged = [judge({**known, **case}, references[case["reference"]]) for case in found]
        cases += judged
        on_progress(f"{head}: {_short(judged)}")
    asked = ("steps", "batch", "dataset", "seed", "lr_scaling", "input_scaling", "kernels", "broken")
    moved: dict[str, dict[str, float]] = {}  # how far sequential runs moved each tensor, the least of all runs
    for one in references.values():
        least = moved.setdefault(f"{one['dtype']} {one['optimizer']}", {})
        least.update({name: min(share, least.get(name, share)) for name, share in one["moved"].items()})
    return {
        "passed": bool(cases) and all(case["passed"] for case in cases),
        "bounds": {dtype: bound for dtype, bound in BOUNDS.items() if dtype in question.dtype},
        **{name: getattr(question, name) for name in asked},
        "unavailable": unavailable,  # runtime -> why it was left out
        "cases": cases,
        "moved": moved,  # "float32 adam" -> tensor -> ||q - q0|| / ||q0||, sequential
    }


def _launched(runtime: str, workers: int, job: Mapping[str, Any], logs: Path) -> dict[str, Any]:
    runs = len(job["trials"]) * len(job["reductions"]) * job["config"]["steps"]
    return run_ranks(
        "horovod_study.programs.equality",
        runtime,
        workers,
        logs / "-".join([runtime.replace("/", "-"), f"{workers}w", *job["reductions"]]),
        job,
        timeout_s=120.0 + 2.0 * runs,  # slow machines and many ranks per core included
        OMP_NUM_THREADS="1",
    )


def usable(
    wanted: Sequence[str] | None, counts: Sequence[int], missing: Mapping[str, str | None], *, gpus: int
) -> tuple[list[tuple[str, int]], dict[str, str]]:
    """Return what to prove as (runtime, workers), and what not with the reason; `missing` is None for what is there.

    Raises ConfigError for what is missing although it was asked for.
    """
    chosen, reasons = [], {}
    few = f"NCCL needs a GPU for each worker, and there {'is' if gpus == 1 else 'are'} {gpus}"
    for runtime in PARALLEL if wanted is None else dict.fromkeys(wanted):
        for count in counts:
            if reason := missing[runtime]:
                reasons[runtime] = reason
            elif _device(runtime) == "cuda" and count > gpus:
                reasons[f"{runtime} with {count} workers"] = few
            else:
                chosen.append((runtime, count))
    if reasons and wanted is not None:
        name, reason = next(iter(reasons.items()))
        have = ", ".join(runtime for runtime in PARALLEL if not missing[runtime]) or "none"
        raise ConfigError(f"bench equality: --runtime {name} is not available here: {reason}; available: {have}")
    return chosen, reasons


def _device(runtime: str) -> str:
    return "cuda" if runtime.endswith("/nccl") else "cpu"


def judge(case: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case of the rank program with its verdict: passed, the worst tensor, and in words why it failed.

    An error that is not a number, None in the case, passes nothing.
    """
    bound, factor, tensors = BOUNDS[case["dtype"]], case["factor"], case["tensors"]
    worst = max(tensors, key=lambda tensor: _size(tensor["relative_error"]))
    judged = (case["dtype"], case["optimizer"]) != _UNJUDGED
    same = {
        "same_order": case["order_sha256"] == reference["order_sha256"],
        "same_lr": all(rates == reference["rates"] for rates in case["rates"]),
        "same_start": all(apart == 0 for apart in case["starts"]),
        "same_operation": abs(_size(factor) - 1) <= bound,
    }
    finite = all(None not in tensor.values() for tensor in tensors)
    within = finite and (not judged or worst["relative_error"] <= bound)
    why = "; ".join(_differences(case, reference, same))
    if not finite:
        why += f"{'; ' * bool(why)}an error is not a finite number: the training diverged"
    elif not within and not why:
        # Order, rate, start and operation agree: it is rounding, amplified by training.
        first, rounding = max(float(tensor["gradient_error"]) for tensor in tensors), reference["rounding"]
        own = "" if rounding is None else f", where float32 alone leaves {rounding:.1e} in the sequential one"
        why = (
            f"{worst['name']} differs though order, rate, start and operation agree: the first averaged gradient "
            f"differs by {first:.1e}{own}; {case['steps']} steps have amplified it, try fewer --steps"
        )
    return {
        **{name: case[name] for name in _KNOWN},
        **same,
        "lr": case["rates"][0][0],
        "gradient_factor": factor,
        "float32_rounding": reference["rounding"],
        "tensors": tensors,
        "worst": worst["name"],
        "judged": judged,
        "passed": within and all(same.values()) and all(case["ends_alike"]),
        "why": why,
    }


def _differences(case: Mapping[str, Any], reference: Mapping[str, Any], same: Mapping[str, bool]) -> Iterator[str]:
    if not same["same_order"]:
        yield f"order differs: {case['order_difference']}"
    if not same["same_lr"]:
        yield f"rate differs: {_rate_difference(case['rates'], reference['rates'])}"
    if not same["same_start"]:
        ranks = [str(rank) for rank, apart in enumerate(case["starts"]) if apart != 0]
        one = len(ranks) == 1
        yield f"start differs: rank{'s' * (not one)} {', '.join(ranks)} begin{'s' * one} with other parameters"
    if not same["same_operation"] and same["same_order"] and same["same_start"]:  # else it is another gradient anyway
        yield f"operation differs: {_operation(case['factor'], case['workers'])}"
    if not all(case["ends_alike"]):
        yield f"rank {case['ends_alike'].index(False)} ends with other parameters than rank 0"


def _size(error: float | None) -> float:
    return math.inf if error is None else error


def _rate_difference(ours: Sequence[Sequence[float]], known: Sequence[float]) -> str:
    for rank, rates in enumerate(ours):
        for step, (rate, wanted) in enumerate(zip(rates, known, strict=True), start=1):
            if rate != wanted:
                where = "on all ranks" if all(each == rates for each in ours) else f"on rank {rank}"
                return f"{rate:g} instead of {wanted:g} in step {step} {where}, {rate / wanted:.6g} times as large"
    return ""


def _operation(factor: float | None, workers: int) -> str:
    if factor is None:
        return "the averaged gradient is not finite"
    meant = ""
    if abs(factor / workers - 1) < _NEAR:
        meant = f", a sum over the {workers} workers in the place of their mean"
    elif abs(factor * workers - 1) < _NEAR:
        meant = f", divided by the {workers} workers twice"
    size = f"{factor:.6g} times too large" if factor > 1 else f"only {factor:.6g} times the sequential one"
    return f"the averaged gradient is {size}{meant}"


def _short(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return what one launch found, in a line: the worst error per precision, or the first failure."""
    failed = [case for case in cases if not case["passed"]]
    if failed:
        return f"{len(failed)} of {len(cases)} cases failed: {failed[0]['why']}"
    worst: dict[str, float] = {}
    for case in cases:
        name = f"{case['dtype']} {case['optimizer']}"
        worst[name] = max(worst.get(name, 0.0), *(tensor["relative_error"] for tensor in case["tensors"]))
    return f"{len(cases)} cases, " + ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
