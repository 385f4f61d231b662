"""Data or model parallel? The arithmetic of memory, messages and time for one model on so many workers.

Everything is per step of one global batch G = n b, so that the ways can be compared: n workers, b samples per worker
when the data are split. Memory is counted, not measured; times follow from the two constants of the network
(analysis/costs.py) and the rate of computing. Letters: P parameters, S gradient bytes, A activation bytes per sample,
F FLOP. docs/predict.md says how to read the answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from horovod_study.analysis.costs import Link, link_of_line, moved_share
from horovod_study.analysis.machine.network import all_reduce_at, fits_of
from horovod_study.config.doors import Form, Number, Options, Text, Whole, above, accept, at_least, one_of
from horovod_study.config.doors import asked as accept_asked
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError, refuse
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

OPTIONS = packaged().options

_INDEX_BYTES = 8  # of the places of the maxima that pooling keeps
_STATE_BYTES = {"adam": 8, "adamw": 8, "sgd": 4}
"""Optimiser state per parameter in float32: two moments of Adam, one momentum."""
_ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Under autocast the activations are halved; weights, gradients and optimiser state stay in float32, 4 bytes each."""
CLOSE = 0.02  # efficiencies nearer than this are a tie, and the simpler way is advised
_CHANNELS, _POINTS, _TARGETS, _KERNEL, _POOL = 3, 201, 2, 5, 3  # of the worked example, docs/strain.md

_Count = Annotated[Whole, at_least(0)]
_Positive = Annotated[Whole, at_least(1)]


class Layer(Form):
    """One layer, per sample: what it holds, keeps, hands on and computes."""

    name: Text = ""
    parameters: _Count
    activations: _Count  # numbers kept until the backward pass
    flop: _Count  # forward, a multiply and an add as two
    output: _Count = Field(default_factory=lambda told: told["activations"])  # numbers handed to the next layer
    indices: _Count = 0  # whole numbers kept beside them (max pooling)
    pairs: _Count = 0  # of matrices inside it that can be split by columns, then by rows; 2 in a transformer block
    times: _Positive = 1  # so many equal layers in a row


class LayeredModel(Form):
    """Layers in their order, the numbers per sample that enter the first, and what it is called."""

    name: Text = ""
    input: _Count | None = None
    layers: Annotated[list[Layer], Field(min_length=1)]

    @property
    def parameters(self) -> int:
        """P."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flop(self) -> int:
        """Forward FLOP per sample."""
        return sum(layer.flop for layer in self.layers)

    @property
    def train_flop(self) -> int:
        """FLOP of a training step per sample: backward costs twice forward, less the gradient of the model's input."""
        return 3 * self.flop - self.layers[0].flop

    def activation_bytes(self, precision: str) -> int:
        """A: bytes per sample that wait for the backward pass, the input among them."""
        each = _ACTIVATION_BYTES[precision]
        return sum(layer.activations * each + layer.indices * _INDEX_BYTES for layer in self.layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is asked: the model, how it is trained, and on what."""

    model: LayeredModel
    batch: int  # b, per worker when the data are split
    workers: int  # n
    workers_per_node: int | None = None
    memory_bytes: float | None = None  # of one worker
    memory_source: str = ""
    optimizer: str = "adam"
    precision: str = "fp32"
    network: Link | None = None
    flop_per_s: float | None = None  # of one worker, in training
    rate_source: str = ""
    waited_s: float | None = None  # measured wait for gradients per step, data parallel with these workers and batch

    @property
    def global_batch(self) -> int:
        """G = n b."""
        return self.workers * self.batch

    @property
    def nodes(self) -> int:
        """Nodes, each filled before the next is used."""
        return math.ceil(self.workers / (self.workers_per_node or self.workers))


def cnn(widths: str) -> LayeredModel:
    """Return the worked example for `widths` such as 15-38-197, counted from its shapes.

    Kept for the backward pass, channels-last as shipped: of a convolution its input and its output (the input of the
    pooling) with the places of the maxima; the output of every ReLU; the reordered input of the first dense layer; the
    output and the targets of the loss.
    """
    first, second, hidden = map(int, OPTIONS["widths"].check("model-parallel", widths).split("-"))
    long1 = _POINTS - _KERNEL + 1
    short1 = long1 // _POOL
    long2 = short1 - _KERNEL + 1
    flat = second * (long2 // _POOL)
    kept1 = _CHANNELS * _POINTS + first * (long1 + short1)
    kept2 = second * long2 + flat + (flat if second > 1 else 0)  # one channel is in order already
    fields = ("name", "parameters", "activations", "flop", "output", "indices")
    rows = (
        ("conv1", (_CHANNELS * _KERNEL + 1) * first, kept1, 2 * _CHANNELS * _KERNEL * first * long1, first * short1),
        ("conv2", (first * _KERNEL + 1) * second, kept2, 2 * first * _KERNEL * second * long2, flat),
        ("fc1", (flat + 1) * hidden, hidden, 2 * flat * hidden, hidden),
        ("fc2", (hidden + 1) * _TARGETS, 2 * _TARGETS, 2 * hidden * _TARGETS, _TARGETS),
    )
    maxima = (first * short1, flat, 0, 0)
    layers = [dict(zip(fields, (*row, each), strict=True)) for row, each in zip(rows, maxima, strict=True)]
    about = {"name": f"the strain-stress CNN {widths}", "input": _CHANNELS * _POINTS}
    return LayeredModel.model_validate({**about, "layers": layers})


def layered_model(content: Mapping[str, Any], *, source: str) -> LayeredModel:
    """Return the model that a YAML file describes: `name`, `input`, and `layers` with the fields of Layer.

    Layers of several `times` stand in a row, each with a name. Raises ConfigError naming file, layer and key.
    """
    again = "a layer has name, parameters, activations and flop"
    told: LayeredModel = accept(LayeredModel, content, source, again=again)
    refuse(
        source,
        (not told.parameters, "the layers have no parameters; correct them"),
        (not told.flop, "the layers have no FLOP; correct them"),
        (sum(layer.times for layer in told.layers) > 100_000, "more than 100,000 layers are asked for"),
    )
    layers = [
        each.model_copy(update={"name": name if each.times == 1 else f"{name}.{copy}", "times": 1})
        for number, each in enumerate(told.layers, start=1)
        for name in (each.name or f"layer {number}",)
        for copy in range(1, each.times + 1)
    ]
    return told.model_copy(update={"name": told.name or source, "layers": layers})


def network_of(content: Mapping[str, Any], *, source: str, way: str | None, size: float) -> Link:
    """Return the constants between two workers from what `horovod-study bench` wrote as bench.json.

    `way`: one of those measured; default is the quickest for `size` bytes. Beyond the sizes that were measured beta is
    that of the time extrapolated there. Raises AnalysisError when the file has no fit, or not of this way.
    """
    fits, workers = fits_of(content, source=source, way=way)
    lines = {name: (float(fit["alpha_s"]), float(fit["beta_bytes_per_s"])) for name, fit in fits.items()}
    chosen = way or min(lines, key=lambda name: lines[name][0] + size / lines[name][1])
    (alpha_s, beta), told = lines[chosen], f"{chosen}, {workers} workers, {source}"
    link = link_of_line(alpha_s, beta, workers, source=told)
    if not content.get("points") or not (there := all_reduce_at(content["points"], chosen, size, source=source)).doubt:
        return link
    if there.seconds > alpha_s:
        link = link_of_line(alpha_s, size / (there.seconds - alpha_s), workers, source=told)
    return replace(link, error=there.error, doubt=there.doubt)


def rate_of_step(model: LayeredModel, *, batch: int, step_s: float) -> float:
    """Return the FLOP/s of a worker that computes a step of `batch` samples in `step_s`, without communication."""
    return model.train_flop * batch / step_s


_Amount = Annotated[Number, above(0)]


class _Asked(Options):
    """What may be asked, in the names and units of the verb; it holds before a recorded run."""

    batch: _Positive | None = None
    workers: _Positive | None = None
    workers_per_node: _Positive | None = None
    memory_gb: _Amount | None = None
    alpha_us: Annotated[Number, at_least(0)] | None = None
    gb_per_s: _Amount | None = None
    step_ms: _Amount | None = None
    flops_per_s: _Amount | None = None
    widths: Text | None = None
    optimizer: Annotated[Text, one_of(_STATE_BYTES)] | None = None
    precision: Annotated[Text, one_of(_ACTIVATION_BYTES)] | None = None
    way: Text | None = None


def case_of(
    asked: Mapping[str, Any],
    *,
    model: LayeredModel | None = None,
    bench: tuple[Mapping[str, Any], str] | None = None,
    run: tuple[Mapping[str, Any], str] | None = None,
    memory_of: Callable[[int], tuple[float, str] | None] | None = None,
) -> Case:
    """Return the case that what is asked (None: not said), a model, a bench.json and a recorded run describe together.

    `bench`, `run`: content of bench.json and of a run.json, each with its path. `memory_of`: bytes per worker of so
    many on this machine, and where the number is from. Raises ConfigError for contradictions and AnalysisError for
    files that do not hold what is needed.
    """
    said = accept_asked(_Asked, {name: asked.get(name) for name in _Asked.model_fields}, "model-parallel")
    given = said.model_dump(exclude_none=True)
    there = {*given, *(name for name, each in {"model": model, "bench": bench, "run": run}.items() if each)}
    found = {} if run is None else _measured_run(*run)
    known = {"workers": 2, **{name: OPTIONS[name].default for name in ("widths", "batch", "optimizer", "precision")}}
    known |= {name: value for name, value in found.items() if value is not None} | given
    rated = model is None  # bench.json has the step of the worked example
    model, batch, n = model or cnn(known["widths"]), known["batch"], known["workers"]
    trained = found.get("parameters", model.parameters)
    rates = "--step-ms, --flops-per-s and --run all say how fast a worker computes; give one of them"
    example = "--run is of the worked example and says nothing of --model; give --step-ms instead"
    other = f"--widths {known['widths']} has {model.parameters:,} parameters, but the run trained {trained:,}"
    refuse(
        "model-parallel",
        ({"widths", "model"}.issubset(there), "--widths and --model both name a model; give one of them"),
        (("alpha_us" in there) != ("gb_per_s" in there), "a network has --alpha-us and --gb-per-s; give both"),
        (len({"step_ms", "flops_per_s", "run"}.intersection(there)) > 1, rates),
        ({"bench", "alpha_us"}.issubset(there), "--bench and --alpha-us both describe the network; give one of them"),
        ("way" in there and "bench" not in there, "--way chooses from the file of --bench; give that too"),
        ({"model", "run"}.issubset(there), example),
        (trained != model.parameters, f"{other}; leave --widths out"),
    )
    network, per_node = None, given.get("workers_per_node")
    if bench is not None:
        network = network_of(bench[0], source=bench[1], way=given.get("way"), size=4 * model.parameters)
    elif "alpha_us" in given:
        network = Link(alpha_s=given["alpha_us"] / 1e6, bytes_per_s=given["gb_per_s"] * 1e9)
    memory = (given["memory_gb"] * 1e9, "--memory-gb") if "memory_gb" in given else None
    if memory is None and memory_of is not None:
        memory = memory_of(min(n, per_node or n))
    memory_bytes, memory_source = memory or (None, "")
    rate, source = given.get("flops_per_s"), "--flops-per-s" if "flops_per_s" in given else ""
    if "step_ms" in given:
        rate = rate_of_step(model, batch=batch, step_s=given["step_ms"] / 1e3)
        source = f"a step of {given['step_ms']:g} ms"
    elif run is not None:
        rate = rate_of_step(model, batch=found["batch"], step_s=found["computing_s"])
        source = f"a step of {found['computing_s'] * 1e3:.3g} ms without the wait, {run[1]}"
    elif rate is None and rated and bench is not None and isinstance(roof := bench[0].get("roofline"), dict):
        rate, source = float(roof["flop_per_s"]), f"the step measured in {bench[1]}"
    same = found.get("workers") == n and found.get("batch") == batch
    told = {name: known[name] for name in ("batch", "workers", "optimizer", "precision")}
    told |= {"model": model, "workers_per_node": per_node, "network": network, "flop_per_s": rate}
    told |= {"rate_source": source, "waited_s": found.get("sync_s") if same and n > 1 else None}
    return Case(**told, memory_bytes=memory_bytes, memory_source=memory_source)


def _measured_run(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return batch, workers, model and seconds per step of a run.json; AnalysisError where they are not known."""
    effective, totals = content["effective"], content["totals"]
    sync_s = 0.0 if effective.get("workers") == 1 else totals.get("sync_s")
    unknown = "the run has not finished, so its step is not known; name a finished run"
    hidden = (
        f"{effective.get('backend')} hides the wait for gradients in its "
        f"{'backward pass' if totals.get('compute_s') is None else 'CUDA graph'}, so the run does not say how fast it "
        "computes; name a run of one worker, or give --step-ms"
    )
    finished = content["status"] == "done" and totals.get("step_s")
    refuse(source, (not finished, unknown), (sync_s is None, hidden), error=AnalysisError)
    return {
        **{name: effective.get(name) for name in ("batch", "workers", "widths", "precision", "parameters")},
        "optimizer": content["requested"].get("optimizer"),
        "sync_s": sync_s,
        "computing_s": totals["step_s"] - sync_s,
    }


def advise(case: Case) -> dict[str, Any]:
    """Return which way of spreading `case.model` fits, and why: the document of the verb; unknown is None.

    `crossover_batch`: b above which data parallel sends less than tensor parallel; `activation_crossover_batch`: b at
    which the activations of a worker weigh as much as the gradients.
    """
    model, n = case.model, case.workers
    size, kept, ways = 4 * model.parameters, model.activation_bytes(case.precision), _ways(case)
    # Data parallel sends share S, tensor parallel share G per_sample = share n b per_sample.
    per_sample = sum(_tensor_messages(model)) * _ACTIVATION_BYTES[case.precision]
    crossover = size / (n * per_sample) if per_sample and n > 1 else None
    best, verdict = _verdict(case, ways)
    layers = [
        {**each.model_dump(include={"name", "parameters", "activations", "indices", "flop"}), "output": each.output}
        for each in model.layers
    ]
    net = case.network
    missing: dict[str, object] = {
        "the network, hence all communication times; measure it with `horovod-study bench --out DIR` and give --bench "
        "DIR/bench.json, or give --alpha-us and --gb-per-s": net is None and n > 1,
        "how fast a worker computes, hence efficiencies; give --run RUN_DIR, --step-ms or --flops-per-s": (
            case.flop_per_s is None
        ),
        "the memory of a worker; give --memory-gb": case.memory_bytes is None,
    }
    doubts: dict[str, object] = {
        f"the network was measured with {net and net.workers} workers and is taken to be as good with {n} on "
        f"{plural(case.nodes, 'node')}; measure there": net and net.workers and net.workers < n,
        net.doubt if net else "": net and net.doubt,
        "memory is that of the model: the framework, its buffers and fragments come on top": True,
        "all layers are taken to compute at the same rate, and smaller pieces as fast as whole ones": (
            case.flop_per_s is not None
        ),
    }
    told = {"name": model.name, "parameters": model.parameters, "gradient_bytes": size}
    told |= {"activation_bytes_per_sample": kept, "forward_flop_per_sample": model.flop}
    about = ("batch", "workers", "nodes", "global_batch", "optimizer", "precision", "memory_bytes", "memory_source")
    document = {name: getattr(case, name) for name in (*about, "network", "flop_per_s", "rate_source")}
    document |= {"model": {**told, "train_flop_per_sample": model.train_flop, "layers": layers}, "ways": ways}
    document |= {"crossover_batch": crossover, "activation_crossover_batch": size / kept, "best": best}
    document |= {"verdict": verdict, "reasons": list(_reasons(case, ways, crossover))}
    document |= {"missing": [text for text, holds in missing.items() if holds]}
    document |= {"doubts": [text for text, holds in doubts.items() if holds]}
    found: dict[str, Any] = finite(document)
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the answer of `advise`, and the arithmetic that leads to it, for a terminal."""
    model, batch, wire = found["model"], found["batch"], found["network"] or {}
    p, size, a = model["parameters"], model["gradient_bytes"], model["activation_bytes_per_sample"]
    heads = ("way", "memory", "fits", "sent", "communicates", "computes", "efficiency")
    amounts = {"sent_bytes": "B", "communication_s": "s", "computing_s": "s"}
    ways = [
        (
            *(way["short"], _si(way["memory_bytes"], "B"), {True: "yes", False: "no", None: "?"}[way["fits"]]),
            *(_si(way[name], unit) for name, unit in amounts.items()),
            "?" if way["efficiency"] is None else _percent(way["efficiency"]),
        )
        for way in found["ways"]
    ]
    text = [
        *(found["verdict"], *(f"  {reason}" for reason in found["reasons"]), ""),
        f"{model['name']}, {plural(len(model['layers']), 'layer')} (--json has each)",
        f"  P = {p:,} parameters; gradients S = 4 P = {size:,} B = {_si(size, 'B')}",
        f"  A = {a:,} B of activations per sample kept for backward, {_si(a * batch, 'B')} at b = {batch}",
        f"  F = {model['forward_flop_per_sample']:,} FLOP forward, {model['train_flop_per_sample']:,} in training",
        f"{plural(found['workers'], 'worker')} on {plural(found['nodes'], 'node')}",
        f"  memory of each {_si(found['memory_bytes'], 'B')} {found['memory_source']}",
        f"  computing at {_si(found['flop_per_s'], 'FLOP/s')} {found['rate_source']}",
        f"  network alpha = {_si(wire.get('alpha_s'), 's')}, beta = {_si(wire.get('bytes_per_s'), 'B/s')} "
        f"between two workers {wire.get('source', '')}",
        *("", f"a step of G = {found['global_batch']} samples, in which nothing overlaps"),
        *to_lines(table_of(heads, ways), indent=2),
        *(f"  {way['name']}: {way['memory']}; {way['messages']}" for way in found["ways"]),
        *("", *(f"not known: {each}" for each in found["missing"]), *(f"doubt: {each}" for each in found["doubts"])),
    ]
    return [line.rstrip() for line in text]


def _ways(case: Case) -> list[dict[str, Any]]:
    """Return the ways to spread the model with their sums, the simplest first; of one worker data parallel alone."""
    model, n, g, state = case.model, case.workers, case.global_batch, _STATE_BYTES[case.optimizer]
    p, size, a = model.parameters, 4 * model.parameters, model.activation_bytes(case.precision) * case.batch
    held = [4 * layer.parameters for layer in model.layers if layer.parameters]
    moved, even = moved_share(n) * size, model.train_flop * case.batch
    groups, width = _groups(model), _ACTIVATION_BYTES[case.precision]
    split, whole = {place for group in groups for place in group}, {group[-1] for group in groups}
    names = " + ".join("-".join(model.layers[place].name for place in group) for group in groups[:4])
    names += f" + {len(groups) - 4} more" if len(groups) > 4 else ""
    own = sum(model.layers[place].parameters for place in split)
    share = sum(model.layers[place].flop for place in split) / model.flop
    # A split layer keeps its part of everything but what it hands on, which is whole everywhere at the end of a group.
    kept = 0.0
    for place, layer in enumerate(model.layers):
        own_bytes = layer.activations * width + layer.indices * _INDEX_BYTES
        left = min(own_bytes, layer.output * width) if place in whole else 0
        kept += left + (own_bytes - left) / n if place in split else own_bytes
    sizes = [numbers * width * g for numbers in _tensor_messages(model)]
    rest = {f"(P_split/n + P_rest) (8 + {state})": (own / n + p - own) * (8 + state), "activations of G": kept * g}
    divided = {f"P (8 + {state})/n": p * (8 + state) / n, "A b": a, "the largest layer whole": 2 * max(held)}
    told = f"{len(sizes)} all-reduces of activations, 2 (n-1)/n of {_si(math.fsum(sizes), 'B')}"
    ways: list[tuple[str, str, Mapping[str, float], str, float, Callable[[Link], float]]] = [
        (
            *("data", "data parallel", {f"P (8 + {state})": p * (8 + state), "A b": a}),
            *("one all-reduce, 2 (n-1)/n S", moved, lambda net: net.all_reduce_s(size, n)[0]),
        ),
        (
            *("ZeRO-1", "data parallel, optimiser state sharded (ZeRO-1)"),
            {f"P (8 + {state}/n)": p * (8 + state / n), "A b": a},
            "reduce-scatter of the gradients, all-gather of the weights, 2 (n-1)/n S",
            *(moved, lambda net: 2 * net.half_s(size, n)),
        ),
        (
            *("ZeRO-3", "data parallel, everything sharded (ZeRO-3, FSDP)", divided),
            f"two all-gathers and a reduce-scatter of each of {plural(len(held), 'layer')}, 3 (n-1)/n S",
            *(1.5 * moved, lambda net: sum(3 * net.half_s(each, n) for each in held)),
        ),
        (
            *("tensor", f"tensor parallel of {names}", rest, f"{told}; {100 * share:.0f} % of the FLOP are split"),
            moved_share(n) * math.fsum(sizes),
            lambda net: math.fsum(net.all_reduce_s(each, n)[0] for each in sizes),
        ),
    ]
    found, rate = [], case.flop_per_s
    for short, name, memory, messages, sent, seconds in ways[: None if n > 1 else 1]:
        needed, flop = math.fsum(memory.values()), even * n * (share / n + 1 - share) if short == "tensor" else even
        communicates = None if case.network is None else seconds(case.network)
        step = None if communicates is None or rate is None else flop / rate + communicates
        way = {"short": short, "name": name, "memory_bytes": needed, "sent_bytes": sent}
        way |= {"memory": f"{' + '.join(memory)} = {' + '.join(_si(each, 'B') for each in memory.values())}"}
        way |= {"messages": f"{messages}: {_si(sent, 'B')} sent", "communication_s": communicates, "step_s": step}
        way |= {"fits": None if case.memory_bytes is None else needed <= case.memory_bytes}
        way |= {"computing_s": None if rate is None else flop / rate}
        found.append({**way, "efficiency": even / rate / step if step and rate else None})
    return found


def _groups(model: LayeredModel) -> list[tuple[int, ...]]:
    """Return the places of the layers to split: the large ones, each with its successor where the two make a pair."""
    least = 0.1 * max(layer.parameters for layer in model.layers)
    groups: list[tuple[int, ...]] = []
    for place, layer in enumerate(model.layers):
        if layer.parameters < least or (groups and place in groups[-1]):
            continue
        after = model.layers[place + 1] if place + 1 < len(model.layers) else None
        # By columns and then by rows: what is between the two layers never has to be put together.
        paired = not layer.pairs and after is not None and after.parameters > 0 and not after.pairs
        groups.append((place, place + 1) if paired else (place,))
    return groups


def _tensor_messages(model: LayeredModel) -> list[int]:
    """Return the numbers per sample of each all-reduce of tensor parallel, forward and backward."""
    messages = []
    for group in _groups(model):
        entering = model.layers[group[0] - 1].output if group[0] else 0  # the model's input needs no gradient
        messages += max(1, model.layers[group[0]].pairs) * [model.layers[group[-1]].output, entering]
    return [numbers for numbers in messages if numbers]


def _verdict(case: Case, ways: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the `short` of the best way, "" where none fits, and the answer in words."""
    possible = [way for way in ways if way["fits"] is not False]
    if not possible:
        least = min(ways, key=lambda way: float(way["memory_bytes"]))
        needs = f"the least takes {least['name']}, {_si(least['memory_bytes'], 'B')} per worker"
        return "", f"no way fits into the memory: {needs}; use more workers, a smaller batch, or recompute activations"
    ranked = sorted((way for way in possible if way["efficiency"]), key=lambda way: -float(way["efficiency"]))
    if not ranked:  # the order of `ways` is that of simplicity: data parallel, then what gives up least for its memory
        return possible[0]["short"], f"{possible[0]['name']}, as far as memory and bytes can tell"
    close = [way for way in possible if way in ranked and way["efficiency"] >= ranked[0]["efficiency"] - CLOSE]
    others = [f"{way['name']} {_percent(way['efficiency'])}" for way in ranked if way is not close[0]]
    verdict = f"{close[0]['name']}: expected efficiency {_percent(close[0]['efficiency'])} on {case.workers} workers"
    return close[0]["short"], verdict + (f"; next {others[0]}" if others else "")


def _reasons(case: Case, ways: Sequence[Mapping[str, Any]], crossover: float | None) -> Iterator[str]:
    data, kept = ways[0], case.model.activation_bytes(case.precision) * case.batch
    sends = data["communication_s"]
    yield f"a worker needs {_si(data['memory_bytes'], 'B')} for the whole model, and has {_si(case.memory_bytes, 'B')}"
    yield f"its batch keeps {_si(kept, 'B')} of activations beside {_si(4 * case.model.parameters, 'B')} of gradients"
    if crossover is not None:
        gradients = f"{_si(data['sent_bytes'], 'B')} of gradients per worker and step, whatever the batch"
        tensor = f"tensor parallel {_si(ways[-1]['sent_bytes'], 'B')} of activations, which grow with it"
        equal = f"they are equal at {crossover:.3g} samples per worker, and the batch is {case.batch}"
        yield f"data parallel sends {gradients}, {tensor}: {equal}"
    if sends and case.waited_s is not None:
        waits = f"{_si(case.waited_s, 's')} per step for gradients, whose messages alone take {_si(sends, 's')}"
        yield f"measured: the run waits {waits}; `horovod-study explain --measure` says where it goes"
    if sends and case.flop_per_s:  # E = t b / (t b + c) = 0.9 at b = 9 c / t
        needed = math.ceil(9 * sends / (case.model.train_flop / case.flop_per_s))
        yield f"data parallel without overlap is at least 90 % efficient from {needed:,} samples per worker on"


def _si(value: float | None, unit: str) -> str:
    """Return an amount with three digits and the letter of its thousands, `614 kB` or `20 us`; `?` is unknown."""
    if not value:
        return "?" if value is None else f"0 {unit}"
    power = min(5, max(-3, math.floor(math.log10(1.0005 * abs(value)) / 3)))
    scaled = value / 1000.0**power
    return f"{scaled:{'.0f' if abs(scaled) >= 99.95 else '.3g'}} {'num kMGTP'[power + 3].strip()}{unit}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"
