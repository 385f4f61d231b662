"""The constants of a scenario, from recorded runs and from what `horovod-study bench` measured, with their intervals.

    computing      of the steps of runs: all laps but the synchronisation, on each worker's own clock
                   (docs/attribution.md). Runs with other numbers of workers on a node tell how they slow each other
                   down, runs with two batch sizes how computing depends on the batch: a + b batch.
    alpha, beta    of `bench`: alpha of its line t = alpha + S/beta, per message, so divided by the ceil(log2 n) rounds
                   that a small all-reduce of n workers takes; the bandwidth from the measured time at the size of the
                   gradients (where the line is no straight one, that time is better than the line), divided by the
                   2 (n-1)/n of the bytes that a large all-reduce must move.
    overhead       of the runtime: of a run with several workers, what is left of its synchronisation after waiting and
                   the all-reduce; else the difference between the runtime's all-reduce and the raw one in `bench`.

So with as many workers as `bench` had and one run of one worker, a step is predicted from measurements of its parts;
a run of several workers is reproduced by construction and carried on from.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from horovod_study.analysis import stats
from horovod_study.analysis.costs import Floats, Link, moved_share, rounds
from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.machine.network import all_reduce_at, all_reduces, fits_of
from horovod_study.analysis.simulate.allreduce import Curves, Sweep
from horovod_study.analysis.simulate.network import CHOICES, MAX_WORKERS, Network, costs, small_allreduce_s, split
from horovod_study.analysis.simulate.scaling import Scenario, Spread
from horovod_study.analysis.simulate.step import NEGOTIATIONS, Compute, Runtime, measured
from horovod_study.analysis.steps.rank_steps import BEFORE_SYNC, cycle_s, ready_steps, settings_of
from horovod_study.config.doors import Number, Options, Text, Whole, one_of
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.records import RecordedRun

_FUSION, CACHE = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunTimes:
    """What a recorded run says: times in s, of S steps and R ranks."""

    source: str
    workers: int
    per_node: int  # workers on its fullest node
    batch: int
    gradient_bytes: float | None
    backend: str
    transport: str
    reduction: str
    settings: Mapping[str, Any]
    own_s: Floats  # (S, R), computing
    sync_s: Floats | None  # (S, R)
    backward_share: float | None  # of computing; None where a CUDA graph holds forward and backward


def run_times(run: RecordedRun) -> RunTimes:
    """Return the times of a recorded run.

    The first step of each epoch is left out: before it came an evaluation or a barrier. AnalysisError where the laps
    are missing, where the wait for other workers is inside backward, or for fewer than 20 steps.
    """
    name, effective = str(run.directory), run.record.effective
    silent = run.workers - len(run.rows)
    tables = [
        {each: np.asarray(columns[each]) for each in ("step", "epoch", "sync_s", *(f"{lap}_s" for lap in BEFORE_SYNC))}
        for _, columns in sorted(run.rows.items())
    ]
    last = min((int(table["step"].max()) for table in tables), default=0)
    kept = [(table["step"] >= run.first_step) & (table["step"] <= last) for table in tables]
    if silent or len({int(each.sum()) for each in kept}) != 1:
        none = f"{silent} of its {run.workers} workers recorded no steps"
        raise AnalysisError(f"{name}: {none if silent else 'its workers recorded different steps'}; name another run")
    rows = [
        {each: column[chosen] for each, column in table.items()} for table, chosen in zip(tables, kept, strict=True)
    ]
    steps = ready_steps(rows, source=name)
    hidden = run.workers > 1 and np.isnan(steps.sync_s).any()
    if hidden or not np.isfinite(steps.own_s).all():
        inside = ("CUDA graph", "without capture_sync") if steps.captured else ("backward pass", "with flat reduction")
        waits = (
            f"the wait for other workers is inside its {inside[0]} and cannot be distinguished from computing; name a "
            f"run of one worker, or one {inside[1]}"
        )
        bare = "its steps were recorded without laps; name a run recorded with them"
        raise AnalysisError(f"{name}: {waits if hidden else bare}")
    parameters = effective.get("parameters")
    hosts = [str(each.get("host")) for each in effective.get("ranks") or ()]
    return RunTimes(
        source=name,
        workers=run.workers,
        per_node=max((hosts.count(host) for host in hosts), default=run.workers),
        batch=int(effective["batch"]),
        gradient_bytes=float(4 * parameters) if parameters else None,
        backend=str(effective.get("backend", "")),
        transport=str(effective.get("transport", "")),
        reduction=str(effective.get("reduction", "")),
        settings=settings_of(effective),
        own_s=steps.own_s,
        sync_s=None if run.workers == 1 else steps.sync_s,
        backward_share=None if steps.captured else float(steps.backward_s.sum() / steps.own_s.sum()),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """The two constants of a kind of link as `bench` measured them, and the overhead of the runtime there."""

    source: str
    way: str
    raw: str | None  # the transport alone, where it was measured
    workers: int
    nodes: int
    per_node: int
    link: Link
    sweep: Sweep
    alpha_spread: float | None  # of the logarithm
    bandwidth_spread: float | None
    overhead_s: float | None
    settings: Mapping[str, Any]
    gradient_bytes: float
    batch: int
    doubts: tuple[str, ...]


def measured_network(content: Mapping[str, Any], *, source: str, way: str | None, size: float | None) -> Measured:
    """Return the constants of one bench.json for messages of `size` bytes (default: the gradients of its model).

    `way`: one of those measured; by default the runtime that is quickest at this size, else the quickest transport.
    AnalysisError where it holds no all-reduce of several workers, or not of this way.
    """
    try:
        return _measured_network(content, source=source, way=way, size=size)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AnalysisError(
            f"{source}: is damaged or no result of `horovod-study bench` ({type(error).__name__}: {error}); "
            "measure again"
        ) from None


def _measured_network(content: Mapping[str, Any], *, source: str, way: str | None, size: float | None) -> Measured:
    fits, n = fits_of(content, source=source, way=way)
    own = float(content["model"]["flat_bytes"])
    size = own if size is None else size
    times = {name: all_reduce_at(content["points"], name, size, source=source) for name in fits}
    candidates = [name for name in fits if "/" in name] or list(fits)
    chosen = way or min(candidates, key=lambda name: times[name][0])
    transport = chosen.rpartition("/")[2]
    raw = transport if transport in fits else None
    floor = raw or chosen
    doubts = []
    alpha = float(fits[floor]["alpha_s"])
    second, error = times[floor].seconds, times[floor].error
    if second <= alpha or impossible("bandwidth", bandwidth=size / (second - alpha)):
        # The line misses the measured time; then its own slope is all there is.
        second, error = alpha + size / float(fits[floor]["beta_bytes_per_s"]), 0.0
        doubts.append(
            f"{source}: {floor} takes less for {size:,.0f} bytes than its alpha; its fitted bandwidth is used"
        )
    doubts += [times[floor].doubt] if times[floor].doubt else []
    if raw is None and "/" in chosen:
        doubts.append(
            f"{source}: {transport} alone was not measured, so what {chosen} adds counts as latency of the network and "
            f"grows with the workers; measure both: bench --transport {transport} --runtime {chosen}"
        )
    ranks = [str(rank["host"]) for rank in content["measured"][0]["conditions"]["ranks"]]
    nodes = len(set(ranks))
    per_node = max(ranks.count(host) for host in ranks)
    if nodes > 1 and per_node > 1:
        doubts.append(
            f"{source}: {n} workers on {nodes} nodes use both kinds of links at once, and its constants count as those "
            "between nodes; measure one worker per node, and one node alone"
        )
    if content.get("wrong"):
        doubts.append(f"{source}: holds wrong results; do not believe its times")
    interval, alpha_spread = fits[floor].get("alpha_ci95_s"), None
    if interval and None not in interval and 0 < interval[0] <= interval[1]:
        alpha_spread = math.log(interval[1] / interval[0]) / 2 / stats.Z95  # of the logarithm
    if alpha_spread is None or alpha_spread > math.log(2) / 2:
        doubts.append(
            f"{source}: the latency of {floor} is not resolved; measure with more rounds or on a quiet machine"
        )
    job = next(
        (each for each in content["measured"] if any(one["name"] == chosen for one in each["ways"])),
        content["measured"][0],
    )
    settings = settings_of(job["conditions"])
    overhead: float | None = None
    if raw is not None and raw != chosen:
        overhead = max(0.0, times[chosen][0] - times[raw][0])
        if cycle_s(settings) > 0:
            doubts.append(
                f"{source}: {chosen} was measured with a cycle that new gradients do not end, so its overhead holds "
                "waits for the cycle; measure with HOROVOD_IDLE_CYCLE_TIME, or read the cycle's share as too large"
            )
    points = all_reduces(content["points"], floor)
    sizes, medians = (np.array([float(each[name]) for each in points]) for name in ("bytes", "seconds_median"))
    bandwidth = moved_share(n) * size / (second - alpha)
    if why := impossible("bandwidth", bandwidth=bandwidth):
        raise AnalysisError(f"{source}: {floor} hardly takes longer for more bytes ({why}); measure larger sizes")
    return Measured(
        source=source,
        way=chosen,
        raw=raw,
        workers=n,
        nodes=nodes,
        per_node=per_node,
        link=Link(alpha_s=alpha / rounds(n), bytes_per_s=bandwidth, workers=n),
        sweep=Sweep(workers=n, nodes=nodes, sizes=sizes, seconds=medians),
        alpha_spread=alpha_spread,
        bandwidth_spread=error or None,
        overhead_s=overhead,
        settings=settings,
        gradient_bytes=own,
        batch=int(content["model"]["batch"]),
        doubts=tuple(doubts),
    )


def _runtime(settings: Mapping[str, Any], *, horovod: bool) -> Runtime:
    if not horovod:
        return Runtime()
    cached = float(settings.get(CACHE) or 1) > 0
    return Runtime(
        cycle_s=cycle_s(settings),
        negotiation="cached" if cached else "full",
        fusion_bytes=float(settings.get(_FUSION) or 128 * 2**20),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Calibration:
    """A scenario and where its constants come from."""

    scenario: Scenario
    sources: Mapping[str, str]  # constant -> in words


@dataclass(frozen=True, slots=True)
class _Notes:
    """What is found on the way: where constants come from, and doubts."""

    sources: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


_Positive = Annotated[Number, Field(ge=1e-12, le=1e12)]  # beyond it a product of several is not a number any more
_Amount = Annotated[Number, Field(ge=0, le=1e12)]
_Count = Annotated[Whole, Field(ge=1, le=MAX_WORKERS)]


class Given(Options):
    """What options say; they hold before what was measured. Names and units are those of the verb."""

    way: Text | None = None
    alpha_us: _Amount | None = None
    gb_per_s: _Positive | None = None
    workers_per_node: _Count | None = None
    compute_ms: _Positive | None = None
    compute_cv: _Amount | None = None
    compute_fixed_ms: _Amount | None = None
    batch: Annotated[Whole, Field(ge=1, le=10**12)] | None = None
    gradient_mb: _Positive | None = None
    overhead_us: _Amount | None = None
    cycle_ms: Annotated[Number, Field(ge=0, le=3.6e6)] | None = None
    fusion_mb: _Amount | None = None
    buckets: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    algorithm: Annotated[Text, one_of(CHOICES)] = "auto"
    scaling: Literal["weak", "strong"] = "weak"

    @property
    def link(self) -> Link | None:
        """The link that --alpha-us and --gb-per-s describe."""
        if self.alpha_us is None or self.gb_per_s is None:
            return None
        return Link(alpha_s=self.alpha_us / 1e6, bytes_per_s=self.gb_per_s * 1e9)


def calibrate(
    given: Given,
    *,
    runs: Sequence[RunTimes] = (),
    beside: Sequence[RunTimes] = (),
    benches: Sequence[tuple[Mapping[str, Any], str]] = (),
    further: Sequence[tuple[Mapping[str, Any], str]] = (),
    network: Network | None = None,
) -> Calibration:
    """Return the scenario that runs, bench.json files, a described network and options say together.

    What was measured holds before what is described in `network`. `beside`: runs of one worker each, recorded at the
    same time on one node. `further`: files of other worker counts, whose all-reduces of the way that is used count
    beside those of `benches`. The first of `runs` decides batch and model. Raises ConfigError for contradictions and
    for what nobody said, AnalysisError for runs that cannot be read together.
    """
    # Long because each constant has one of several sources, and which one holds is decided here and nowhere else.
    _refuse(given, runs=bool(runs or beside), benches=bool(benches), network=network is not None)
    notes = _Notes()
    first = (*runs, *beside)[0] if runs or beside else None
    communicating = next((each for each in runs if each.workers > 1), None)
    way = given.way
    if way is None and communicating is not None:
        # What the run used, where all files have it; plain MPI has no name of its own.
        known = [set(content.get("fits") or ()) for content, _ in benches]
        names = (f"{communicating.backend}/{communicating.transport}", communicating.transport)
        way = next((name for name in names if all(name in each for each in known)), None)
    size = given.gradient_mb * 1e6 if given.gradient_mb is not None else first.gradient_bytes if first else None
    found = [measured_network(content, source=source, way=way, size=size) for content, source in benches]
    if size is not None:
        notes.sources["gradients"] = "--gradient-mb" if first is None or given.gradient_mb is not None else first.source
    else:
        size, notes.sources["gradients"] = found[0].gradient_bytes, found[0].source

    sweeps = tuple(each.sweep for each in found)
    for content, source in further:
        ways = {each.raw or each.way for each in found} & set(content.get("fits") or ())
        sweeps += tuple(measured_network(content, source=source, way=name, size=size).sweep for name in sorted(ways))
    made = _network(found, sweeps, network, given, notes)
    if given.compute_ms is not None:
        compute = Compute(mean_s=given.compute_ms / 1e3, cv=given.compute_cv or 0.0)
        computing: dict[str, Any] = {"compute": compute, "batch": 1 if given.batch is None else given.batch}
        spread: float | None = None
        notes.sources["computing"] = "--compute-ms"
        if given.compute_fixed_ms is not None:
            computing |= {"fixed_share": given.compute_fixed_ms / given.compute_ms, "batch_measured": True}
            notes.sources["batch"] = f"{given.compute_fixed_ms:g} ms do not depend on it; --compute-fixed-ms"
        if given.batch is None:
            notes.doubts.append("no --batch was given: a step counts as one sample")
    else:
        assert first is not None
        computing, spread = _computing(runs, beside, first.batch if given.batch is None else given.batch, notes)
    runtime = _runtime_of(given, communicating, found, made, size, notes)
    if "backward_share" not in computing and runs and (given.buckets or 1) > 1:
        notes.doubts.append(
            "how much of computing is backward is not known of steps in a CUDA graph: half of it is assumed to make "
            "buckets"
        )
    scenario = Scenario(
        **computing,
        gradient_bytes=size,
        network=made,
        algorithm=given.algorithm,
        runtime=runtime,
        scaling=given.scaling,
        buckets=1 if given.buckets is None else given.buckets,
        spread=Spread(
            compute=spread,
            alpha=max((each.alpha_spread for each in found if each.alpha_spread is not None), default=None),
            bandwidth=max((each.bandwidth_spread for each in found if each.bandwidth_spread is not None), default=None),
        ),
        doubts=tuple(notes.doubts),
    )
    return Calibration(scenario=scenario, sources=notes.sources)


def _refuse(given: Given, *, runs: bool, benches: bool, network: bool) -> None:
    """Raise ConfigError where two things say the same, or nothing says what is needed."""
    told, timed = given.link is not None, given.compute_ms is not None
    nothing = (
        "nothing says what the network does; give --bench bench.json, --network FILE.yaml, or --alpha-us and --gb-per-s"
    )
    apart = given.compute_fixed_ms is not None and not given.compute_fixed_ms <= (given.compute_ms or 0.0)
    for wrong, text in (
        ((given.alpha_us is None) != (given.gb_per_s is None), "a network has --alpha-us and --gb-per-s; give both"),
        (told and (network or benches), "--alpha-us says what --bench or --network say too; give one of them"),
        (not (told or network or benches), nothing),
        (timed and runs, "--compute-ms and recorded runs both say how long a worker computes; give one of them"),
        (not (timed or runs), "nothing says how long a worker computes; give --run RUN_DIR or --compute-ms"),
        (
            given.compute_cv is not None and not timed,
            "--compute-cv belongs to --compute-ms; a recorded run has its own scatter",
        ),
        (apart, "--compute-fixed-ms is a part of --compute-ms, which must be given and not be less"),
        (
            given.way is not None and not benches,
            "--way names one of those in --bench; give --bench bench.json, or leave it out",
        ),
        (
            given.gradient_mb is None and not (runs or benches),
            "nothing says how many bytes the gradients have; give --gradient-mb",
        ),
    ):
        if wrong:
            raise ConfigError(f"simulate: {text}")


def _network(
    found: Sequence[Measured], sweeps: tuple[Sweep, ...], described: Network | None, given: Given, notes: _Notes
) -> Network:
    if (link := given.link) is not None:
        notes.sources["network"] = "--alpha-us and --gb-per-s"
        return Network(intra=link, inter=link, workers_per_node=given.workers_per_node or 1)
    links: dict[str, Link] = {} if described is None else {"intra": described.intra, "inter": described.inter}
    told = [] if described is None else [described.source]
    for each in found:
        kind = "intra" if each.nodes == 1 else "inter"
        links[kind] = each.link
        told.append(
            f"{each.raw or each.way}, {each.workers} workers on {each.nodes} node{'s' * (each.nodes > 1)}, "
            f"{each.source}"
        )
        notes.doubts.extend(each.doubts)
    notes.sources["network"] = "; ".join(told)
    if "inter" not in links:
        links["inter"] = links["intra"]
        notes.doubts.append(
            "links between nodes were not measured: those within a node stand in for them, which says little; measure "
            "one worker on each of two nodes, or give --network"
        )
    if "intra" not in links:
        links["intra"] = links["inter"]
        notes.doubts.append("links within a node were not measured: those between nodes stand in for them")
    sizes = [each.workers for each in found]
    if sizes:
        notes.doubts.append(
            f"alpha and bandwidth were measured with {' and '.join(str(each) for each in sizes)} workers; how they "
            "hold for more is the model's assumption"
        )
    fullest = max((each.per_node for each in found), default=1)
    per_node = given.workers_per_node or (described.workers_per_node if described else fullest)
    return Network(
        **links,
        workers_per_node=per_node,
        levels=described.levels if described else (),
        servers=described.servers if described else 1,
        source=notes.sources["network"],
        measured=Curves(sweeps=sweeps, **links, alone=described is None) if found else None,
    )


def _computing(
    runs: Sequence[RunTimes], beside: Sequence[RunTimes], batch: int, notes: _Notes
) -> tuple[dict[str, Any], float]:
    """Return computing at `batch` as measured with the most workers on a node, as fields of a scenario; its spread."""
    known = [(each, each.per_node) for each in runs] + [(each, len(beside)) for each in beside]
    odd = [each for each in beside if each.workers != 1] or list(beside[:1] if len(beside) == 1 else ())
    if odd or len({each.gradient_bytes for each, _ in known}) > 1:
        apart = "simulate: the runs trained different models; give runs of one model"
        several = "--beside takes runs of one worker each, recorded at the same time, two at least"
        raise AnalysisError(f"{odd[0].source}: {several}" if odd else apart)
    batches = sorted({each.batch for each, _ in known})
    base = batch if batch in batches else known[0][0].batch
    at_base = [(each, k) for each, k in known if each.batch == base]
    counts = sorted({k for _, k in at_base})
    pooled_of = {k: np.concatenate([each.own_s.ravel() for each, its in at_base if its == k]) for k in counts}
    means = {k: float(times.mean()) for k, times in pooled_of.items()}
    crowding = MappingProxyType({k: means[k] / means[counts[0]] for k in counts})
    most = counts[-1]
    chosen = [each for each, k in at_base if k == most]
    pooled = pooled_of[most]
    notes.sources["computing"] = ", ".join(each.source for each in chosen)
    if counts[0] < most:
        notes.sources["crowding"] = ", ".join(f"{k} on a node: x {crowding[k]:.3f}" for k in counts)
    found = _fixed_share(known, counts, base, notes) if len(batches) > 1 else None
    fixed, line = found or 0.0, found is not None
    for each in chosen:
        _check_independence(each, notes)
    if len(chosen) == 1:
        notes.doubts.append("computing comes from one run: what differs from launch to launch is not in the intervals")
    shares = [each.backward_share for each in chosen if each.backward_share is not None]
    times_as_long = 1.0 if batch == base else fixed + (1 - fixed) * batch / base
    if batch != base and not line:
        notes.doubts.append(
            f"--batch {batch} was not run: computing is taken as proportional to the batch from {base} on; give "
            "runs with two batch sizes"
        )
    fields = {"compute": measured(pooled * times_as_long), "batch": batch, "fixed_share": fixed / times_as_long}
    fields |= {"beside": most, "crowding": crowding, "batch_measured": line}
    fields |= {"backward_share": float(np.mean(shares))} if shares else {}
    return fields, _spread_of_mean(chosen)


def _fixed_share(
    known: Sequence[tuple[RunTimes, int]], counts: Sequence[int], base: int, notes: _Notes
) -> float | None:
    """Return the share of computing at batch `base` that does not depend on the batch; None where no runs say it.

    `known`: runs with the workers on their node; lines go through those of the most among `counts` that have several.
    """
    k = max({its for each, its in known if each.batch != base} & set(counts), default=None)
    if k is None:
        notes.doubts.append("runs of other batches have other numbers of workers on a node and are not used")
        return None
    sizes = [each.batch for each, its in known if its == k]
    slope, intercept = np.polyfit(sizes, [float(each.own_s.mean()) for each, its in known if its == k], 1)
    told = ", ".join(map(str, sorted(set(sizes))))
    notes.sources["batch"] = f"{intercept * 1e3:.3g} ms + {slope * 1e6:.3g} us per sample, batches {told}"
    if intercept < 0 or slope < 0:
        notes.doubts.append(
            "computing does not grow with the batch along a line with a positive start: "
            + ("no fixed part is assumed" if intercept < 0 else "all of it is taken as fixed")
        )
    return float(np.clip(intercept / (intercept + slope * base), 0.0, 1.0))


def _spread_of_mean(runs: Sequence[RunTimes]) -> float:
    """Return the relative standard error of the mean: of runs where there are three, else of blocks of steps."""
    means = np.array([each.own_s.mean() for each in runs])
    if len(means) >= 3:
        return float(stats.standard_error(means) / means.mean())
    errors = []
    for each in runs:
        steps = each.own_s.mean(axis=1)
        blocks = np.array([part.mean() for part in np.array_split(steps, min(20, len(steps)))])
        errors.append(float(stats.standard_error(blocks) / blocks.mean()))
    return float(max(errors))


def _check_independence(run: RunTimes, notes: _Notes) -> None:
    """Doubt the assumption that workers are slow independently, where a run of several shows that they are not."""
    if run.workers == 1:
        return
    waited = float((run.own_s.max(axis=1) - run.own_s.mean(axis=1)).mean())
    expected = measured(run.own_s).expected_slowest_s(run.workers) - float(run.own_s.mean())
    if expected > 0 and not 0.5 <= waited / expected <= 2.0:
        notes.doubts.append(
            f"{run.source}: its workers wait {waited * 1e3:.3g} ms for the slowest, independent ones would wait "
            f"{expected * 1e3:.3g} ms: they are slow {'together' if waited < expected else 'apart'}, and the simulated "
            f"waiting is {'too long' if waited < expected else 'too short'}"
        )


def _runtime_of(
    given: Given, run: RunTimes | None, found: Sequence[Measured], network: Network, size: float, notes: _Notes
) -> Runtime:
    """Return the runtime of the run of several workers, or as it was measured; options hold before either."""
    if run is not None:
        runtime = _runtime(run.settings, horovod=run.backend == "horovod")
    else:
        runtime = _measured_runtime(found, notes)
    if given.overhead_us is not None:
        runtime = replace(runtime, overhead_s=given.overhead_us / 1e6)
        notes.sources["overhead"] = "--overhead-us"
    elif run is not None:
        left = _left_over(run, network, given.algorithm, runtime, size, notes)
        runtime = replace(runtime, overhead_s=left)
        notes.sources["overhead"] = f"what is left of the synchronisation of {run.source}"
    if given.cycle_ms is not None:
        runtime = replace(runtime, cycle_s=given.cycle_ms / 1e3)
        notes.sources["cycle"] = "--cycle-ms"
    if given.fusion_mb is not None:
        runtime = replace(runtime, fusion_bytes=given.fusion_mb * 2**20)
    return runtime


def _measured_runtime(found: Sequence[Measured], notes: _Notes) -> Runtime:
    # What a runtime adds was measured where no network hides it: on one node, if that was measured.
    with_overhead = [each for each in found if each.overhead_s is not None]
    if not with_overhead:
        return Runtime()
    best = min(with_overhead, key=lambda each: each.nodes)
    notes.sources["overhead"] = f"{best.way} less {best.raw}, {best.source}"
    runtime = _runtime(best.settings, horovod=best.way.startswith("horovod/"))
    # The measured difference holds the negotiation among its workers already.
    negotiated_s = NEGOTIATIONS[runtime.negotiation] * rounds(best.workers) * float(best.link.alpha_s)
    assert best.overhead_s is not None
    return replace(runtime, overhead_s=max(0.0, best.overhead_s - negotiated_s))


def _left_over(run: RunTimes, network: Network, algorithm: str, runtime: Runtime, size: float, notes: _Notes) -> float:
    """Return what the synchronisation of a run takes beyond waiting for the slowest, the all-reduce and agreeing."""
    assert run.sync_s is not None
    n = run.workers
    waited = (run.own_s.max(axis=1, keepdims=True) - run.own_s).mean()
    here = replace(network, workers_per_node=run.per_node)
    latency, transfer = split(costs(here, algorithm, n), size)
    negotiated_s = NEGOTIATIONS[runtime.negotiation] * small_allreduce_s(here, n)
    left = float(run.sync_s.mean() - waited - latency - transfer - negotiated_s)
    if runtime.cycle_s > 0:
        notes.doubts.append(
            f"{run.source}: ran with a cycle of {runtime.cycle_s * 1e3:g} ms that new gradients do not end; the waits "
            "for it are simulated and also in the overhead; give --overhead-us"
        )
    if left < 0:
        notes.doubts.append(
            f"{run.source}: synchronised {-left * 1e3:.3g} ms quicker than the measured all-reduce would allow; the "
            "benchmark was slower than the run"
        )
    return max(0.0, left)


def largest_of_each_kind(
    benches: Sequence[tuple[dict[str, Any], str]],
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Return the file with most workers on one node and that with most across nodes, and what the others say.

    Constants hold best near the workers they were measured with. What is set aside is compared with them: its measured
    times over those of the alpha-beta model (costs.py) with the constants kept, at the largest size of both.
    """
    kept: dict[bool, tuple[dict[str, Any], str]] = {}
    for each in sorted(benches, key=lambda each: each[0].get("workers", 0)):
        kept[_spans(each[0])] = each
    doubts = [
        f"{source}: {content['workers']} workers, set aside for the {best['workers']} of {name}"
        + _compared(content, best)
        for content, source, (best, name) in ((*each, kept[_spans(each[0])]) for each in benches)
        if content is not best
    ]
    return [each for each in benches if each[0] is kept[_spans(each[0])][0]], doubts


def _spans(content: Mapping[str, Any]) -> bool:
    jobs = content.get("measured") or [{}]
    with suppress(AttributeError, TypeError, LookupError):  # what is damaged is told where it is read
        return len({str(rank.get("host")) for rank in (jobs[0].get("conditions") or {}).get("ranks", [])}) > 1
    return False


def _compared(content: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return how the times of `content` compare with the alpha-beta model of `best`, where both have an all-reduce."""
    way = next((name for name in best.get("fits") or {} if name in (content.get("fits") or {})), "")
    own, theirs = (
        {row["bytes"]: row["seconds_median"] for row in all_reduces(each["points"], way)} for each in (content, best)
    )
    if not (common := set(own) & set(theirs)):
        return ""
    n, m, size = content["workers"], best["workers"], max(common)
    # As in simulation: bytes from the time at this size, latency by the rounds.
    alpha_s = min(best["fits"][way]["alpha_s"], theirs[size])
    model_s = alpha_s * rounds(n) / rounds(m) + (theirs[size] - alpha_s) * moved_share(n) / moved_share(m)
    return f": of {size:,} bytes they took {own[size] / model_s:.2f} of what the constants kept say"
