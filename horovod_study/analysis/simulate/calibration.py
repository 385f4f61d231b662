"""The constants of a scenario, from recorded runs and from what `horovod-study bench` measured, with their intervals.

    computing      of the steps of runs: all laps but the synchronisation, on each worker's own clock. Runs with other
                   numbers of workers on a node tell how they slow each other down, two batch sizes how it depends on it
    alpha, beta    of `bench`: alpha of its line, divided by the ceil(log2 n) rounds of a small all-reduce; the
                   bandwidth from the measured time at the size of the gradients, divided by 2 (n-1)/n
    overhead       of the runtime: of a run with several workers, what is left of its synchronisation after waiting and
                   the all-reduce; else the difference between the runtime's all-reduce and the raw one in `bench`

So a run of several workers is reproduced by construction and carried on from.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from horovod_study.analysis import stats
from horovod_study.analysis.costs import Link, moved_share, rounds
from horovod_study.analysis.machine.network import all_reduce_at, all_reduces, fits_of
from horovod_study.analysis.series.culprits import impossible
from horovod_study.analysis.simulate.scaling import (
    CHOICES,
    MAX_WORKERS,
    NEGOTIATIONS,
    Compute,
    Curves,
    Network,
    Runtime,
    Scenario,
    Sweep,
    costs,
    measured,
    small_allreduce_s,
    split,
)
from horovod_study.analysis.steps.rank_steps import BEFORE_SYNC, cycle_s, ready_steps, settings_of
from horovod_study.config.doors import Number, Options, Text, Whole, one_of
from horovod_study.errors import AnalysisError, refuse
from horovod_study.records import RecordedRun

Bench = tuple[Mapping[str, Any], str]  # the content of a bench.json, and its name


class RunTimes(SimpleNamespace):
    """What a recorded run says: times in s, of S steps and R ranks.

    source, workers, per_node (workers on its fullest node), batch, gradient_bytes (None: unknown), backend, transport,
    settings; own_s (S, R), computing; sync_s (S, R), None of one worker; backward_share of computing, None where a CUDA
    graph holds forward and backward.
    """


def run_times(run: RecordedRun) -> RunTimes:
    """Return the times of a recorded run.

    The first step of each epoch is left out: before it came an evaluation or a barrier. AnalysisError where the laps
    are missing, where the wait for other workers is inside backward, or for fewer than 20 steps.
    """
    name, effective = str(run.directory), run.record.effective
    needed = ("step", "epoch", "sync_s", *(f"{lap}_s" for lap in BEFORE_SYNC))
    rows = [{each: np.asarray(columns[each]) for each in needed} for _, columns in sorted(run.rows.items())]
    last = min((int(table["step"].max()) for table in rows), default=0)
    for table in rows:
        kept = (table["step"] >= run.first_step) & (table["step"] <= last)
        table.update({each: column[kept] for each, column in table.items()})
    silent, uneven = run.workers - len(rows), len({len(table["step"]) for table in rows}) != 1
    refuse(
        name,
        (silent, f"{silent} of its {run.workers} workers recorded no steps; name another run"),
        (uneven, "its workers recorded different steps; name another run"),
        error=AnalysisError,
    )
    steps = ready_steps(rows, source=name)
    inside = ("CUDA graph", "without capture_sync") if steps.captured else ("backward pass", "with flat reduction")
    waits = f"the wait for other workers is inside its {inside[0]} and cannot be distinguished from computing; name a "
    waits += f"run of one worker, or one {inside[1]}"
    refuse(
        name,
        (run.workers > 1 and np.isnan(steps.sync_s).any(), waits),
        (not np.isfinite(steps.own_s).all(), "its steps were recorded without laps; name a run recorded with them"),
        error=AnalysisError,
    )
    parameters, hosts = effective.get("parameters"), [str(each.get("host")) for each in effective.get("ranks") or ()]
    found = RunTimes(**{name: str(effective.get(name, "")) for name in ("backend", "transport")})
    found.source, found.workers, found.batch = name, run.workers, int(effective["batch"])
    found.per_node = max((hosts.count(host) for host in hosts), default=run.workers)
    found.gradient_bytes, found.settings = float(4 * parameters) if parameters else None, settings_of(effective)
    found.own_s, found.sync_s = steps.own_s, None if run.workers == 1 else steps.sync_s
    found.backward_share = None if steps.captured else float(steps.backward_s.sum() / steps.own_s.sum())
    return found


class Measured(SimpleNamespace):
    """The two constants of a kind of link as `bench` measured them, and the overhead of the runtime there.

    source, way, raw (the transport alone; None where it was not measured), per_node, link, sweep; alpha_spread and
    bandwidth_spread, of the logarithm, None where not known; overhead_s, None where not known; settings,
    gradient_bytes, doubts.
    """


def measured_network(content: Mapping[str, Any], *, source: str, way: str | None, size: float | None) -> Measured:
    """Return the constants of one bench.json for messages of `size` bytes (default: the gradients of its model).

    `way`: one of those measured; by default the runtime that is quickest at this size, else the quickest transport.
    AnalysisError where it holds no all-reduce of several workers, or not of this way.
    """
    try:
        return _measured_network(content, source, way, size)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"is damaged or no result of `horovod-study bench` ({type(error).__name__}: {error})"
        raise AnalysisError(f"{source}: {what}; measure again") from None


def _measured_network(content: Mapping[str, Any], source: str, way: str | None, size: float | None) -> Measured:
    fits, n = fits_of(content, source=source, way=way)
    own = float(content["model"]["flat_bytes"])
    size = own if size is None else size
    times = {name: all_reduce_at(content["points"], name, size, source=source) for name in fits}
    chosen = way or min([name for name in fits if "/" in name] or fits, key=lambda name: times[name].seconds)
    transport = chosen.rpartition("/")[2]
    raw = transport if transport in fits else None
    floor = raw or chosen
    alpha, second, error = float(fits[floor]["alpha_s"]), times[floor].seconds, times[floor].error
    above = second <= alpha or bool(impossible("bandwidth", bandwidth=size / (second - alpha)))
    if above:  # the line misses the measured time; then its own slope is all there is
        second, error = alpha + size / float(fits[floor]["beta_bytes_per_s"]), 0.0
    hosts = _hosts(content)
    nodes, per_node = len(set(hosts)), max(hosts.count(host) for host in hosts)
    ends = fits[floor].get("alpha_ci95_s") or (None, None)
    low, high = (math.nan if each is None else float(each) for each in ends)
    alpha_spread = math.log(high / low) / 2 / stats.Z95 if 0 < low <= high else None
    jobs = content["measured"]
    job = next((each for each in jobs if any(one["name"] == chosen for one in each["ways"])), jobs[0])
    settings = settings_of(job["conditions"])
    overhead = None if raw in (None, chosen) else max(0.0, times[chosen].seconds - times[floor].seconds)
    bandwidth = moved_share(n) * size / (second - alpha)
    if why := impossible("bandwidth", bandwidth=bandwidth):
        raise AnalysisError(f"{source}: {floor} hardly takes longer for more bytes ({why}); measure larger sizes")
    woken = overhead is None or cycle_s(settings) == 0
    doubts = {
        f"{floor} takes less for {size:,.0f} bytes than its alpha; its fitted bandwidth is used": above,
        times[floor].doubt.removeprefix(f"{source}: "): times[floor].doubt,
        f"{transport} alone was not measured, so what {chosen} adds counts as latency of the network; measure both: "
        f"bench --transport {transport} --runtime {chosen}": raw is None and "/" in chosen,
        f"{n} workers on {nodes} nodes use both kinds of links, and its constants count as those between nodes; "
        "measure one worker per node, and one node alone": nodes > 1 and per_node > 1,
        "holds wrong results; do not believe its times": content.get("wrong"),
        f"the latency of {floor} is not resolved; measure with more rounds or on a quiet machine": alpha_spread is None
        or alpha_spread > math.log(2) / 2,
        f"the overhead of {chosen} holds waits for its cycle; measure with HOROVOD_IDLE_CYCLE_TIME": not woken,
    }
    points = all_reduces(content["points"], floor)
    sizes, medians = (np.array([float(each[name]) for each in points]) for name in ("bytes", "seconds_median"))
    told: dict[str, Any] = {"source": source, "way": chosen, "raw": raw, "per_node": per_node, "settings": settings}
    told |= {"overhead_s": overhead, "alpha_spread": alpha_spread, "gradient_bytes": own}
    return Measured(
        **told,
        link=Link(alpha_s=alpha / rounds(n), bytes_per_s=bandwidth, workers=n),
        sweep=Sweep(workers=n, nodes=nodes, sizes=sizes, seconds=medians),
        bandwidth_spread=error or None,
        doubts=tuple(f"{source}: {text}" for text, holds in doubts.items() if holds),
    )


_Positive = Annotated[Number, Field(ge=1e-12, le=1e12)]  # beyond it a product of several is not a number any more
_Amount = Annotated[Number, Field(ge=0, le=1e12)]


class Given(Options):
    """What options say; they hold before what was measured. Names and units are those of the verb."""

    way: Text | None = None
    alpha_us: _Amount | None = None
    gb_per_s: _Positive | None = None
    workers_per_node: Annotated[Whole, Field(ge=1, le=MAX_WORKERS)] | None = None
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


def calibrate(
    given: Given,
    *,
    runs: Sequence[RunTimes] = (),
    beside: Sequence[RunTimes] = (),
    benches: Sequence[Bench] = (),
    further: Sequence[Bench] = (),
    network: Network | None = None,
) -> Scenario:
    """Return the scenario that runs, bench.json files, a described network and options say together.

    What was measured holds before what is described in `network`. `beside`: runs of one worker each, recorded at the
    same time on one node. `further`: files of other worker counts, whose all-reduces of the way that is used count
    beside those of `benches`. The first of `runs` decides batch and model. Raises ConfigError for contradictions and
    for what nobody said, AnalysisError for runs that cannot be read together.
    """
    # Where two things say the same, or nothing says what is needed.
    linked, timed, fixed = given.alpha_us is not None, given.compute_ms is not None, given.compute_fixed_ms
    ran, described = runs or beside, linked or network or benches
    refuse(
        "simulate",
        (linked != (given.gb_per_s is not None), "a network has --alpha-us and --gb-per-s; give both"),
        (linked and (network or benches), "--alpha-us says what --bench or --network say too; give one of them"),
        (not described, "nothing says what the network does; give --bench, --network, or --alpha-us"),
        (timed and ran, "--compute-ms and recorded runs both say how long a worker computes; give one of them"),
        (not (timed or ran), "nothing says how long a worker computes; give --run RUN_DIR or --compute-ms"),
        (given.compute_cv is not None and not timed, "--compute-cv belongs to --compute-ms; a run has its own scatter"),
        (
            fixed is not None and not fixed <= (given.compute_ms or 0.0),
            "--compute-fixed-ms is a part of --compute-ms, which must be given and not be less",
        ),
        (given.way is not None and not benches, "--way names one of those in --bench; give that too"),
        (
            given.gradient_mb is None and not (ran or benches),
            "nothing says how large gradients are; give --gradient-mb",
        ),
    )
    notes, first = SimpleNamespace(sources={}, doubts=[]), next(iter((*runs, *beside)), None)
    together, way = next((each for each in runs if each.workers > 1), None), given.way
    if way is None and together is not None:  # what the run used, where all files have it; plain MPI has no name
        names = (f"{together.backend}/{together.transport}", together.transport)
        way = next((name for name in names if all(name in (of.get("fits") or ()) for of, _ in benches)), None)
    size = given.gradient_mb * 1e6 if given.gradient_mb is not None else first.gradient_bytes if first else None
    found = [measured_network(content, source=source, way=way, size=size) for content, source in benches]
    if size is not None:
        notes.sources["gradients"] = "--gradient-mb" if first is None or given.gradient_mb is not None else first.source
    else:
        refuse("simulate", (not found, "the run does not say how many bytes its gradients have; give --gradient-mb"))
        size, notes.sources["gradients"] = found[0].gradient_bytes, found[0].source
    sweeps = [each.sweep for each in found]
    for content, source in further:
        shared = {each.raw or each.way for each in found} & set(content.get("fits") or ())
        sweeps += [measured_network(content, source=source, way=name, size=size).sweep for name in sorted(shared)]
    made = _network(found, sweeps, network, given, notes)
    computing, spread = _computing(given, runs, beside, notes)
    runtime = _runtime(given, together, found, made, size, notes)
    buckets = given.buckets or 1
    if "backward_share" not in computing and runs and buckets > 1:
        assumed = "how much of computing is backward is not known of steps in a CUDA graph: half of it is assumed"
        notes.doubts.append(f"{assumed} to make buckets")
    spreads: dict[str, float | None] = {"compute": spread}
    for name in ("alpha", "bandwidth"):
        known = [width for each in found if (width := getattr(each, f"{name}_spread")) is not None]
        spreads[name] = max(known, default=None)
    told: dict[str, Any] = {"gradient_bytes": size, "network": made, "runtime": runtime, "spread": spreads}
    told |= {"algorithm": given.algorithm, "scaling": given.scaling, "buckets": buckets, "doubts": tuple(notes.doubts)}
    return Scenario(**computing, **told, sources=notes.sources)


def _network(
    found: Sequence[Measured], sweeps: Sequence[Sweep], described: Network | None, given: Given, notes: SimpleNamespace
) -> Network:
    if given.alpha_us is not None and given.gb_per_s is not None:
        notes.sources["network"] = "--alpha-us and --gb-per-s"
        link = Link(alpha_s=given.alpha_us / 1e6, bytes_per_s=given.gb_per_s * 1e9)
        return Network(intra=link, inter=link, workers_per_node=given.workers_per_node or 1)
    links: dict[str, Any] = {} if described is None else {"intra": described.intra, "inter": described.inter}
    told = [] if described is None else [described.source]
    for each in found:
        n, nodes = each.sweep.workers, each.sweep.nodes
        links["intra" if nodes == 1 else "inter"] = each.link
        told.append(f"{each.raw or each.way}, {n} workers on {nodes} node{'s' * (nodes > 1)}, {each.source}")
        notes.doubts.extend(each.doubts)
    source = notes.sources["network"] = "; ".join(told)
    counts = " and ".join(str(each.sweep.workers) for each in found)
    if "inter" not in links:
        stand_in = "links between nodes were not measured: those within a node stand in for them"
        notes.doubts.append(f"{stand_in}; measure one worker on each of two nodes, or give --network")
    if "intra" not in links:
        notes.doubts.append("links within a node were not measured: those between nodes stand in for them")
    if found:
        measured_with = f"alpha and bandwidth were measured with {counts} workers"
        notes.doubts.append(f"{measured_with}; how they hold for more is the model's assumption")
    links = {"intra": links.get("intra") or links["inter"], "inter": links.get("inter") or links["intra"]}
    measured = Curves(sweeps=tuple(sweeps), **links, alone=described is None) if found else None
    if described is not None:
        per_node = given.workers_per_node or described.workers_per_node
        return replace(described, **links, workers_per_node=per_node, source=source, measured=measured)
    per_node = given.workers_per_node or max(each.per_node for each in found)
    return Network(**links, workers_per_node=per_node, source=source, measured=measured)


def _computing(
    given: Given, runs: Sequence[RunTimes], beside: Sequence[RunTimes], notes: SimpleNamespace
) -> tuple[dict[str, Any], float | None]:
    """Return computing as fields of a scenario, as given or measured with the most workers on a node; its spread."""
    if given.compute_ms is not None:
        notes.sources["computing"] = "--compute-ms"
        compute = Compute(mean_s=given.compute_ms / 1e3, cv=given.compute_cv or 0.0)
        fields: dict[str, Any] = {"compute": compute, "batch": given.batch or 1}
        if given.compute_fixed_ms is not None:
            fields |= {"fixed_share": given.compute_fixed_ms / given.compute_ms, "batch_measured": True}
            notes.sources["batch"] = f"{given.compute_fixed_ms:g} ms do not depend on it; --compute-fixed-ms"
        if given.batch is None:
            notes.doubts.append("no --batch was given: a step counts as one sample")
        return fields, None
    known = [(each, each.per_node) for each in runs] + [(each, len(beside)) for each in beside]
    odd = [each for each in beside if each.workers != 1] or list(beside[:1] if len(beside) == 1 else ())
    several = "--beside takes runs of one worker each, recorded at the same time, two at least"
    models = len({each.gradient_bytes for each, _ in known})
    refuse(odd[0].source if odd else "", (odd, several), error=AnalysisError)
    refuse("simulate", (models > 1, "the runs trained different models; give runs of one model"), error=AnalysisError)
    batch = given.batch or known[0][0].batch
    base = batch if batch in {each.batch for each, _ in known} else known[0][0].batch
    at_base: dict[int, list[RunTimes]] = {}
    for each, k in sorted(known, key=lambda one: one[1]):
        at_base.setdefault(k, []).extend([each] if each.batch == base else [])
    pooled = {k: np.concatenate([each.own_s.ravel() for each in own]) for k, own in at_base.items() if own}
    (fewest, alone), (most, times) = next(iter(pooled.items())), list(pooled.items())[-1]
    crowding = {k: float(each.mean()) / float(alone.mean()) for k, each in pooled.items()}
    chosen = at_base[most]
    notes.sources["computing"] = ", ".join(each.source for each in chosen)
    if fewest < most:
        notes.sources["crowding"] = ", ".join(f"{k} on a node: x {factor:.3f}" for k, factor in crowding.items())
    line = _fixed_share(known, list(pooled), base, notes)
    fixed = line or 0.0
    for each in chosen:
        waited = float((each.own_s.max(axis=1) - each.own_s.mean(axis=1)).mean())
        expected = measured(each.own_s).expected_slowest_s(each.workers) - float(each.own_s.mean())
        if each.workers > 1 and expected > 0 and not 0.5 <= waited / expected <= 2.0:
            slow, wait = ("together", "long") if waited < expected else ("apart", "short")
            notes.doubts.append(
                f"{each.source}: its workers wait {waited * 1e3:.3g} ms for the slowest, independent ones would wait "
                f"{expected * 1e3:.3g} ms: they are slow {slow}, and the simulated waiting is too {wait}"
            )
    longer = 1.0 if batch == base else fixed + (1 - fixed) * batch / base
    if len(chosen) == 1:
        notes.doubts.append("computing comes from one run: what differs from launch to launch is not in the intervals")
    fields = {"compute": measured(times * longer), "batch": batch, "fixed_share": fixed / longer, "beside": most}
    fields |= {"crowding": MappingProxyType(crowding), "batch_measured": line is not None, "batch_known": base}
    if shares := [each.backward_share for each in chosen if each.backward_share is not None]:
        fields["backward_share"] = float(np.mean(shares))
    # Relative standard error of the mean: of runs where there are three, else of blocks of steps.
    samples = [np.array([each.own_s.mean() for each in chosen])]
    if len(chosen) < 3:
        means = [each.own_s.mean(axis=1) for each in chosen]
        samples = [np.array([part.mean() for part in np.array_split(each, min(20, len(each)))]) for each in means]
    return fields, max(float(stats.standard_error(each) / each.mean()) for each in samples)


def _fixed_share(
    known: Sequence[tuple[RunTimes, int]], counts: Sequence[int], base: int, notes: SimpleNamespace
) -> float | None:
    """Return the share of computing at batch `base` that does not depend on the batch; None where no runs say it.

    `known`: runs with the workers on their node; lines go through those of the most among `counts` that have several.
    """
    if not (other := {its for each, its in known if each.batch != base}):
        return None
    k = max(other & set(counts), default=None)
    if k is None:
        notes.doubts.append("runs of other batches have other numbers of workers on a node and are not used")
        return None
    own = [each for each, its in known if its == k]
    sizes = [each.batch for each in own]
    slope, intercept = np.polyfit(sizes, [float(each.own_s.mean()) for each in own], 1)
    told = ", ".join(map(str, sorted(set(sizes))))
    notes.sources["batch"] = f"{intercept * 1e3:.3g} ms + {slope * 1e6:.3g} us per sample, batches {told}"
    if intercept < 0 or slope < 0:
        how = "no fixed part is assumed" if intercept < 0 else "all of it is taken as fixed"
        notes.doubts.append(f"computing does not grow with the batch along a line with a positive start: {how}")
    return float(np.clip(intercept / (intercept + slope * base), 0.0, 1.0))


def _runtime(
    given: Given, run: RunTimes | None, found: Sequence[Measured], network: Network, size: float, notes: SimpleNamespace
) -> Runtime:
    """Return the runtime of the run of several workers, or as it was measured; options hold before either."""
    # What a runtime adds was measured where no network hides it: on one node, if that was measured.
    best = min((each for each in found if each.overhead_s is not None), key=lambda each: each.sweep.nodes, default=None)
    settings = run.settings if run is not None else best.settings if best is not None else {}
    runtime = Runtime()
    if run.backend == "horovod" if run is not None else best is not None and best.way.startswith("horovod/"):
        runtime = Runtime(
            cycle_s=cycle_s(settings),
            negotiation="cached" if float(settings.get("HOROVOD_CACHE_CAPACITY") or 1) > 0 else "full",
            fusion_bytes=float(settings.get("HOROVOD_FUSION_THRESHOLD") or 128 * 2**20),
        )
    overhead_s, source, collectives = 0.0, "", NEGOTIATIONS[runtime.negotiation]
    if given.overhead_us is not None:
        overhead_s, source = given.overhead_us / 1e6, "--overhead-us"
    elif run is not None:
        source = f"what is left of the synchronisation of {run.source}"  # beyond waiting and the all-reduce
        waited = (run.own_s.max(axis=1, keepdims=True) - run.own_s).mean()
        here = replace(network, workers_per_node=run.per_node)
        latency, transfer = split(costs(here, given.algorithm, run.workers), size)
        negotiated_s = collectives * small_allreduce_s(here, run.workers)
        overhead_s = float(run.sync_s.mean() - waited - latency - transfer - negotiated_s)
        if runtime.cycle_s > 0:
            cycle = f"ran with a cycle of {runtime.cycle_s * 1e3:g} ms that new gradients do not end"
            notes.doubts.append(f"{run.source}: {cycle}; its waits are also in the overhead; give --overhead-us")
        if overhead_s < 0:
            quicker = f"synchronised {-overhead_s * 1e3:.3g} ms quicker than the measured all-reduce would allow"
            notes.doubts.append(f"{run.source}: {quicker}; the benchmark was slower than the run")
    elif best is not None and best.overhead_s is not None:
        # The measured difference holds the negotiation among its workers already.
        overhead_s = best.overhead_s - collectives * rounds(best.sweep.workers) * float(best.link.alpha_s)
        source = f"{best.way} less {best.raw}, {best.source}"
    notes.sources |= {"overhead": source} if source else {}
    changes: dict[str, Any] = {"overhead_s": max(0.0, overhead_s)}
    if given.cycle_ms is not None:
        changes["cycle_s"], notes.sources["cycle"] = given.cycle_ms / 1e3, "--cycle-ms"
    if given.fusion_mb is not None:
        changes["fusion_bytes"] = given.fusion_mb * 2**20
    return replace(runtime, **changes)


def largest_of_each_kind(
    benches: Sequence[tuple[dict[str, Any], str]],
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Return the file with most workers on one node and that with most across nodes, and which others are set aside:
    constants hold best near the workers they were measured with."""
    kept: dict[bool, tuple[dict[str, Any], str]] = {}
    for each in sorted(benches, key=lambda each: each[0].get("workers", 0)):
        kept[_spans(each[0])] = each
    doubts = []
    for content, source in benches:
        best, name = kept[_spans(content)]
        if content is not best:
            doubts.append(f"{source}: {content['workers']} workers, set aside for the {best['workers']} of {name}")
    return [each for each in benches if each[0] is kept[_spans(each[0])][0]], doubts


def _hosts(content: Mapping[str, Any]) -> list[str]:
    return [str(rank["host"]) for rank in content["measured"][0]["conditions"]["ranks"]]


def _spans(content: Mapping[str, Any]) -> bool:
    """Return whether the workers of a bench.json were on several nodes; what is damaged is told where it is read."""
    with suppress(AttributeError, TypeError, LookupError):
        return len(set(_hosts(content))) > 1
    return False
