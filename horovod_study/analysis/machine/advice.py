"""Data or model parallel? The arithmetic of memory, messages and time for one model on so many workers.

Everything is per step of one global batch G = n b, so that the ways can be compared: n workers, b samples per worker
when the data are split. Memory is counted, not measured; times follow from the two constants of the network and the
rate of computing. Letters: P parameters, S gradient bytes, A activation bytes per sample, F FLOP.

Message times follow from alpha and beta of the link between two workers (analysis/costs.py); an all-reduce takes the
quickest of its algorithms there. What each way sends and keeps:

    data parallel     S. Rajbhandari et al., "ZeRO", SC20: weights + gradients + optimiser state everywhere, one
                      all-reduce of the gradients
    ZeRO-1            the same paper: optimiser state divided by n; reduce-scatter of the gradients, all-gather of the
                      weights
    ZeRO-3 (FSDP)     the same paper: everything divided by n, a layer's weights gathered when it is used; all-gather
                      forward, all-gather backward, reduce-scatter, for every layer
    tensor parallel   M. Shoeybi et al., "Megatron-LM", 2019: the large layers split, in pairs by columns then rows; one
                      all-reduce of a pair's outputs forward and one of its input's gradient backward
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field, model_validator

from horovod_study.analysis.costs import Link, link_of_line, moved_share
from horovod_study.analysis.machine.network import all_reduce_at, fits_of
from horovod_study.config.doors import Form, Number, Options, Text, Whole, above, accept, at_least, one_of, wrong
from horovod_study.config.doors import asked as accept_asked
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.records import facts
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

OPTIONS = packaged().options

_WEIGHT_BYTES = 4
_INDEX_BYTES = 8  # of the places of the maxima that pooling keeps
_STATE_BYTES = {"adam": 8, "adamw": 8, "sgd": 4}
"""Optimiser state per parameter in float32: two moments of Adam, one momentum."""
_ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Under autocast the activations are halved; weights, gradients and optimiser state stay in float32."""
_LARGE = 0.1  # a layer with at least this share of the largest layer's parameters is split in tensor parallel
CLOSE = 0.02  # efficiencies nearer than this are a tie, and the simpler way is advised

_CHANNELS, _POINTS, _TARGETS, _KERNEL, _POOL = 3, 201, 2, 5, 3  # of the worked example, docs/guide.md


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer, per sample: what it holds, keeps, hands on and computes."""

    DOCUMENT = "name parameters activations indices output flop"

    name: str
    parameters: int
    activations: int  # numbers kept until the backward pass
    flop: int  # forward, a multiply and an add as two
    output: int  # numbers handed to the next layer
    indices: int = 0  # whole numbers kept beside them (max pooling)
    pairs: int = 0  # of matrices inside it that can be split by columns, then by rows; 2 in a transformer block


@dataclass(frozen=True, kw_only=True, slots=True)
class LayeredModel:
    """Layers in their order, the numbers per sample that enter the first, and what it is called."""

    name: str
    input: int
    layers: tuple[Layer, ...]

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
        numbers = sum(layer.activations for layer in self.layers)
        return numbers * _ACTIVATION_BYTES[precision] + sum(layer.indices for layer in self.layers) * _INDEX_BYTES

    def entering(self, place: int) -> int:
        """Return the numbers per sample that enter layer `place`."""
        return self.layers[place - 1].output if place else self.input


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scheme:
    """One way to spread the model, with its sums; unknown is None."""

    DOCUMENT = "name memory_bytes memory fits sent_bytes messages communication_s computing_s step_s efficiency notes"

    case: Case
    name: str
    short: str
    memory_bytes: float
    memory: str  # how it comes about
    sent_bytes: float  # by a worker per step
    messages: str
    communication_s: float | None
    flop: float  # of the slowest worker in a step
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether there is enough memory."""
        there = self.case.memory_bytes
        return None if there is None else self.memory_bytes <= there

    @property
    def computing_s(self) -> float | None:
        """Seconds that the slowest worker computes."""
        rate = self.case.flop_per_s
        return None if rate is None else self.flop / rate

    @property
    def efficiency(self) -> float | None:
        """Time of an even split without communication / time of the step."""
        case = self.case
        if not self.step_s or not case.flop_per_s:
            return None
        return case.model.train_flop * case.batch / case.flop_per_s / self.step_s

    @property
    def step_s(self) -> float | None:
        """Computing and communicating one after the other: nothing overlaps."""
        if self.communication_s is None or self.computing_s is None:
            return None
        return self.computing_s + self.communication_s


@dataclass(frozen=True, kw_only=True, slots=True)
class _Advice:
    """The answer: the ways, the crossover, the verdict, and what is not known."""

    DOCUMENT = (
        "model batch=case.batch workers=case.workers nodes=case.nodes global_batch=case.global_batch "
        "optimizer=case.optimizer precision=case.precision memory_bytes=case.memory_bytes "
        "memory_source=case.memory_source network=case.network flop_per_s=case.flop_per_s "
        "rate_source=case.rate_source ways=schemes crossover_batch "
        "activation_crossover_batch=activation_crossover best verdict reasons missing doubts"
    )

    case: Case
    schemes: tuple[_Scheme, ...]
    gradient_bytes: int
    crossover_batch: float | None  # b above which data parallel sends less than tensor parallel
    activation_crossover: float  # b at which the activations of a worker weigh as much as the gradients
    best: str
    verdict: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...]
    doubts: tuple[str, ...] = field(default=())

    @property
    def model(self) -> dict[str, Any]:
        """The document of the model."""
        model = self.case.model
        return {
            **facts(model, "name", "parameters"),
            "gradient_bytes": self.gradient_bytes,
            "activation_bytes_per_sample": model.activation_bytes(self.case.precision),
            "forward_flop_per_sample": model.flop,
            "train_flop_per_sample": model.train_flop,
            "layers": model.layers,
        }

    def lines(self) -> list[str]:
        """Return the answer, and the arithmetic that leads to it."""
        case, model = self.case, self.case.model
        a = model.activation_bytes(case.precision)
        lines = [f"{self.verdict}", *(f"  {reason}" for reason in self.reasons), ""]
        lines += [f"the model: {model.name}", *to_lines(table_of(_LAYER_HEADS, _layer_rows(model)), indent=2), ""]
        lines += [
            f"  P = {model.parameters:,} parameters; gradients S = {_WEIGHT_BYTES} P = {self.gradient_bytes:,} B "
            f"= {_bytes(self.gradient_bytes)}",
            f"  A = {a:,} B of activations per sample kept for backward; {_bytes(a * case.batch)} at b = {case.batch}, "
            f"{_bytes(a * case.global_batch)} for G = {case.global_batch}",
            f"  F = {model.flop:,} FLOP forward per sample; a training step needs 3 F - F({model.layers[0].name}) = "
            f"{model.train_flop:,} per sample, {_si(model.train_flop * case.global_batch)}FLOP for G",
            f"  A b = S at b = S/A = {self.activation_crossover:.3g}",
        ]
        memory = "not known" if case.memory_bytes is None else f"{_bytes(case.memory_bytes)} ({case.memory_source})"
        rate = "not known" if case.flop_per_s is None else f"{_si(case.flop_per_s)}FLOP/s ({case.rate_source})"
        wire = "not known"
        if case.network is not None:
            wire = (
                f"alpha = {case.network.alpha_s * 1e6:.3g} us, beta = {case.network.bytes_per_s / 1e9:.3g} GB/s "
                f"between two workers ({case.network.source})"
            )
        lines += [
            "",
            f"the machine: {plural(case.workers, 'worker')} on {plural(case.nodes, 'node')}",
            f"  memory per worker  {memory}",
            f"  network            {wire}",
            f"  computing          {rate}",
            "",
            f"the ways, for a step of G = {case.global_batch} samples with n = {case.workers}; nothing overlaps",
            *to_lines(table_of(_SCHEME_HEADS, _scheme_rows(self.schemes)), indent=2),
        ]
        for scheme in self.schemes:
            lines += ["", f"  {scheme.name}"]
            lines += [f"    memory    {scheme.memory}", f"    messages  {scheme.messages}"]
            lines += [f"    {note}" for note in scheme.notes]
        if self.missing:
            lines += ["", *(f"not known: {text}" for text in self.missing)]
        return [*lines, *([""] if self.doubts else []), *(f"doubt: {text}" for text in self.doubts)]


def cnn(widths: str) -> LayeredModel:
    """Return the worked example for `widths` such as 15-38-197, counted from its shapes.

    Kept for the backward pass, channels-last as shipped: of a convolution its input and its output (the input of the
    pooling) with the places of the maxima; the output of every ReLU; the reordered input of the first dense layer; the
    output and the targets of the loss.
    """

    def convolution(name: str, into: int, out: int, length: int, kept: int) -> Layer:
        """`length`: of its output, before the pooling."""
        pooled = out * (length // _POOL)
        flop = 2 * into * _KERNEL * out * length
        parameters = (into * _KERNEL + 1) * out
        return Layer(name=name, parameters=parameters, activations=kept, indices=pooled, output=pooled, flop=flop)

    def dense(name: str, into: int, out: int, kept: int) -> Layer:
        return Layer(name=name, parameters=(into + 1) * out, activations=kept, output=out, flop=2 * into * out)

    first, second, hidden = map(int, OPTIONS["widths"].check("model-parallel", widths).split("-"))
    long1 = _POINTS - _KERNEL + 1
    short1 = long1 // _POOL
    long2 = short1 - _KERNEL + 1
    flat = second * (long2 // _POOL)
    reordered = flat if second > 1 else 0  # one channel is in order already
    return LayeredModel(
        name=f"the strain-stress CNN {widths}",
        input=_CHANNELS * _POINTS,
        layers=(
            convolution("conv1", _CHANNELS, first, long1, _CHANNELS * _POINTS + first * (long1 + short1)),
            convolution("conv2", first, second, long2, second * long2 + flat + reordered),
            dense("fc1", flat, hidden, hidden),
            dense("fc2", hidden, _TARGETS, 2 * _TARGETS),
        ),
    )


_Count = Annotated[Whole, at_least(0)]


class _LayerForm(Form):
    name: Text | None = None
    parameters: _Count
    activations: _Count
    flop: _Count
    output: _Count | None = None
    indices: _Count = 0
    pairs: _Count = 0
    times: Annotated[Whole, at_least(1)] = 1


class _ModelForm(Form):
    name: Text | None = None
    input: _Count | None = None
    layers: Annotated[list[_LayerForm], Field(min_length=1)]

    @model_validator(mode="after")
    def _computes(self) -> "_ModelForm":
        for odd, text in (
            (not any(layer.parameters for layer in self.layers), "the layers have no parameters; correct them"),
            (not any(layer.flop for layer in self.layers), "the layers have no FLOP; correct them"),
            (sum(layer.times for layer in self.layers) > 100_000, "more than 100,000 layers are asked for"),
        ):
            if odd:
                raise wrong(text)
        return self


def layered_model(content: Mapping[str, Any], *, source: str) -> LayeredModel:
    """Return the model that a YAML file describes.

    `input` (numbers per sample) and `layers`, a list of `name`, `parameters`, `activations` (numbers per sample kept
    for backward), `flop` (forward, per sample); optional `output` (numbers handed on, default: the activations),
    `indices`, `pairs` (see Layer), and `times` for so many equal layers in a row. Raises ConfigError naming file, layer
    and key.
    """
    again = "a layer has name, parameters, activations and flop"
    told, made = accept(_ModelForm, content, source, again=again), []
    for number, each in enumerate(told.layers, start=1):
        values = each.model_dump(include={"parameters", "activations", "flop", "indices", "pairs"})
        values["output"] = each.activations if each.output is None else each.output
        name = each.name or f"layer {number}"
        made += [
            Layer(name=name if each.times == 1 else f"{name}.{copy}", **values) for copy in range(1, each.times + 1)
        ]
    entering = made[0].activations if told.input is None else told.input
    return LayeredModel(name=told.name or source, input=entering, layers=tuple(made))


def network_of(content: Mapping[str, Any], *, source: str, way: str | None, size: float) -> Link:
    """Return the constants between two workers from what `horovod-study bench` wrote as bench.json.

    Its line t = alpha + S/beta is of a whole all-reduce on n workers; per message it is alpha / ceil(log2 n) and
    2 (n-1)/n beta, which for two workers are alpha and beta themselves. `way`: one of those measured; default is the
    quickest for `size` bytes. Beyond the sizes that were measured beta is that of the time extrapolated there. Raises
    AnalysisError when the file has no fit, or not of this way.
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

    batch: Annotated[Whole, at_least(1)] | None = None
    workers: Annotated[Whole, at_least(1)] | None = None
    workers_per_node: Annotated[Whole, at_least(1)] | None = None
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
    other = f"--widths {known['widths']} has {model.parameters:,} parameters, but the run trained {trained:,}"
    _refuse(there, f"{other}; leave --widths out" if trained != model.parameters else "")
    network, per_node, memory = None, given.get("workers_per_node"), None
    if bench is not None:
        network = network_of(bench[0], source=bench[1], way=given.get("way"), size=_WEIGHT_BYTES * model.parameters)
    elif "alpha_us" in given:
        network = Link(alpha_s=given["alpha_us"] / 1e6, bytes_per_s=given["gb_per_s"] * 1e9)
    if "memory_gb" in given:
        memory = given["memory_gb"] * 1e9, "--memory-gb"
    elif memory_of is not None:
        memory = memory_of(min(n, per_node or n))
    rate, source = _rate(given, model, batch, found, "" if run is None else run[1])
    if rate is None and rated and bench is not None and isinstance(roof := bench[0].get("roofline"), dict):
        rate, source = float(roof["flop_per_s"]), f"the step measured in {bench[1]}"
    same = found.get("workers") == n and found.get("batch") == batch
    return Case(
        **{name: known[name] for name in ("batch", "workers", "optimizer", "precision")},
        model=model,
        workers_per_node=per_node,
        memory_bytes=None if memory is None else memory[0],
        memory_source="" if memory is None else memory[1],
        network=network,
        flop_per_s=rate,
        rate_source=source,
        waited_s=found.get("sync_s") if same and n > 1 else None,
    )


def _refuse(there: Collection[str], other: str) -> None:
    """Raise ConfigError where two of what is `there` say the same, one belongs to another, or the model is `other`."""
    rates = "--step-ms, --flops-per-s and --run all say how fast a worker computes; give one of them"
    example = "--run is of the worked example and says nothing of --model; give --step-ms instead"
    for holds, text in (
        ({"widths", "model"}.issubset(there), "--widths and --model both name a model; give one of them"),
        (("alpha_us" in there) != ("gb_per_s" in there), "a network has --alpha-us and --gb-per-s; give both"),
        (len({"step_ms", "flops_per_s", "run"}.intersection(there)) > 1, rates),
        ({"bench", "alpha_us"}.issubset(there), "--bench and --alpha-us both describe the network; give one of them"),
        ("way" in there and "bench" not in there, "--way chooses from the file of --bench; give that too"),
        ({"model", "run"}.issubset(there), example),
        (bool(other), other),
    ):
        if holds:
            raise ConfigError(f"model-parallel: {text}")


def _rate(
    given: Mapping[str, Any], model: LayeredModel, batch: int, found: Mapping[str, Any], run: str
) -> tuple[float | None, str]:
    """Return FLOP/s and where they are from: options, else the run."""
    if "step_ms" in given:
        rate = rate_of_step(model, batch=batch, step_s=given["step_ms"] / 1e3)
        return rate, f"a step of {given['step_ms']:g} ms"
    if found.get("computing_s"):
        rate = rate_of_step(model, batch=found["batch"], step_s=found["computing_s"])
        return rate, f"a step of {found['computing_s'] * 1e3:.3g} ms without the wait, {run}"
    return given.get("flops_per_s"), "--flops-per-s" if "flops_per_s" in given else ""


def _measured_run(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return batch, workers, model and seconds per step of a run.json; AnalysisError when the run has not finished."""
    effective, totals = content["effective"], content["totals"]
    sync_s = 0.0 if effective.get("workers") == 1 else totals.get("sync_s")
    finished = content["status"] == "done" and totals.get("step_s")
    if not finished or sync_s is None:
        where = "backward pass" if totals.get("compute_s") is None else "CUDA graph"
        hidden = (
            f"{effective.get('backend')} hides the wait for gradients in its {where}, so the run does not say how fast "
            "it computes; name a run of one worker, or give --step-ms"
        )
        unknown = "the run has not finished, so its step is not known; name a finished run"
        raise AnalysisError(f"{source}: {hidden if finished else unknown}")
    return {
        **{name: effective.get(name) for name in ("batch", "workers", "widths", "precision", "parameters")},
        "optimizer": content["requested"].get("optimizer"),
        "sync_s": sync_s,
        "computing_s": totals["step_s"] - sync_s,
    }


def advise(case: Case) -> _Advice:
    """Return which way of spreading `case.model` fits, and why."""
    model, n = case.model, case.workers
    size = _WEIGHT_BYTES * model.parameters
    schemes = _of_split_data(case)
    if n > 1:
        schemes.append(_tensor(case))
    share = moved_share(n)
    per_sample = sum(_tensor_messages(model)) * _ACTIVATION_BYTES[case.precision]
    # Data parallel sends share S, tensor parallel share G per_sample = share n b per_sample.
    crossover = size / (n * per_sample) if per_sample and n > 1 else None
    best, verdict, reasons = _verdict(case, schemes, size, per_sample, share, crossover)
    return _Advice(
        case=case,
        schemes=tuple(schemes),
        gradient_bytes=size,
        crossover_batch=crossover,
        activation_crossover=size / model.activation_bytes(case.precision),
        best=best,
        verdict=verdict,
        reasons=tuple(reasons),
        missing=tuple(_missing(case)),
        doubts=tuple(_doubts(case)),
    )


def _lasting(seconds: float | None, algorithm: str = "") -> str:
    """Return how long messages take, in words behind what they are; empty where that is not known."""
    return "" if seconds is None else f", {_time(seconds)}{algorithm and f' ({algorithm})'}"


def _of_split_data(case: Case) -> list[_Scheme]:
    """Return the ways in which workers share the data: everything everywhere, and with state or weights divided."""
    model, n, network, state = case.model, case.workers, case.network, _STATE_BYTES[case.optimizer]
    p, size, a = model.parameters, _WEIGHT_BYTES * model.parameters, model.activation_bytes(case.precision) * case.batch
    moved = moved_share(n) * size
    seconds, algorithm = (None, "") if network is None else network.all_reduce_s(size, n)
    way = partial(_Scheme, case=case, flop=model.train_flop * case.batch)
    upper = "the all-reduce of a layer can begin while the layers before it still compute: this is the upper limit"
    told = f"one all-reduce of S = {_bytes(size)}: 2 (n-1)/n S = {_bytes(moved)} sent"
    data = way(
        short="data",
        name="data parallel",
        memory_bytes=p * (2 * _WEIGHT_BYTES + state) + a,
        memory=f"P (4 + 4 + {state}) + A b = {_bytes(p * (8 + state))} + {_bytes(a)}",
        sent_bytes=moved,
        messages=f"{told}{_lasting(seconds, algorithm)}",
        communication_s=seconds,
        notes=(upper,) if n > 1 else (),
    )
    if n == 1:
        return [data]
    seconds = None if network is None else 2 * network.half_s(size, n)
    told = f"reduce-scatter of the gradients, all-gather of the weights: 2 (n-1)/n S = {_bytes(moved)} sent"
    zero1 = way(
        short="ZeRO-1",
        name="data parallel, optimiser state sharded (ZeRO-1)",
        memory_bytes=p * 2 * _WEIGHT_BYTES + p * state / n + a,
        memory=f"P (4 + 4 + {state}/n) + A b = {_bytes(p * (8 + state / n))} + {_bytes(a)}",
        sent_bytes=moved,
        messages=f"{told}{_lasting(seconds)}",
        communication_s=seconds,
    )
    held = [_WEIGHT_BYTES * layer.parameters for layer in model.layers if layer.parameters]
    gathered, moved = 2 * max(held), 3 * (n - 1) / n * size
    seconds = None if network is None else sum(3 * network.half_s(size, n) for size in held)
    told = f"per layer ({len(held)}) two all-gathers and a reduce-scatter: 3 (n-1)/n S = {_bytes(moved)} sent"
    zero3 = way(
        short="ZeRO-3",
        name="data parallel, everything sharded (ZeRO-3, FSDP)",
        memory_bytes=p * (2 * _WEIGHT_BYTES + state) / n + gathered + a,
        memory=f"P (4 + 4 + {state})/n + A b + the largest layer's weights and gradients whole = "
        f"{_bytes(p * (8 + state) / n)} + {_bytes(a)} + {_bytes(gathered)}",
        sent_bytes=moved,
        messages=f"{told}{_lasting(seconds)}",
        communication_s=seconds,
    )
    return [data, zero1, zero3]


def _groups(model: LayeredModel) -> list[tuple[int, ...]]:
    """Return the places of the layers to split: the large ones, each with its successor where the two make a pair."""
    least = _LARGE * max(layer.parameters for layer in model.layers)
    groups: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for place, layer in enumerate(model.layers):
        if place in taken or layer.parameters < least:
            continue
        after = model.layers[place + 1] if place + 1 < len(model.layers) else None
        # By columns and then by rows: what is between the two layers never has to be put together.
        paired = not layer.pairs and after is not None and after.parameters > 0 and not after.pairs
        group = (place, place + 1) if paired else (place,)
        taken.update(group)
        groups.append(group)
    return groups


def _tensor_messages(model: LayeredModel) -> list[int]:
    """Return the numbers per sample of each all-reduce of tensor parallel, forward and backward."""
    messages = []
    for group in _groups(model):
        entering = model.entering(group[0]) if group[0] else 0  # the input of the model needs no gradient
        messages += max(1, model.layers[group[0]].pairs) * [model.layers[group[-1]].output, entering]
    return [numbers for numbers in messages if numbers]


def _tensor(case: Case) -> _Scheme:
    model, n, g = case.model, case.workers, case.global_batch
    each, state = _ACTIVATION_BYTES[case.precision], _STATE_BYTES[case.optimizer]
    groups = _groups(model)
    split = {place for group in groups for place in group}
    names = " + ".join("-".join(model.layers[place].name for place in group) for group in groups[:4])
    names += f" + {len(groups) - 4} more" if len(groups) > 4 else ""
    own = sum(layer.parameters for place, layer in enumerate(model.layers) if place in split)
    rest = model.parameters - own
    # A split layer keeps its part of everything but what it hands on, which is whole everywhere at the end of a group.
    kept = 0.0
    whole = {group[-1] for group in groups}
    for place, layer in enumerate(model.layers):
        own_bytes = layer.activations * each + layer.indices * _INDEX_BYTES
        left = min(own_bytes, layer.output * each) if place in whole else 0
        kept += left + (own_bytes - left) / n if place in split else own_bytes
    flop_split = sum(model.layers[place].flop for place in split)
    flop = (model.train_flop * (flop_split / n + model.flop - flop_split) / model.flop) * g
    sizes = [numbers * each * g for numbers in _tensor_messages(model)]
    seconds = None if case.network is None else math.fsum(case.network.all_reduce_s(size, n)[0] for size in sizes)
    sent = moved_share(n) * math.fsum(sizes)
    told = f"{len(sizes)} all-reduces of activations, {_bytes(math.fsum(sizes))} in all: {_bytes(sent)} sent"
    return _Scheme(
        case=case,
        short="tensor",
        name=f"tensor parallel of {names}",
        memory_bytes=(own / n + rest) * (2 * _WEIGHT_BYTES + state) + kept * g,
        memory=f"(P_split/n + P_rest) (4 + 4 + {state}) + activations of all G samples = "
        f"{_bytes((own / n + rest) * (8 + state))} + {_bytes(kept * g)}",
        sent_bytes=sent,
        messages=f"{told}{_lasting(seconds)}",
        communication_s=seconds,
        flop=flop,
        notes=(
            f"{100 * flop_split / model.flop:.0f} % of the FLOP are in the split layers; the others are done by every "
            "worker for all G samples",
        ),
    )


def _verdict(
    case: Case, schemes: Sequence[_Scheme], size: int, moved: float, share: float, crossover: float | None
) -> tuple[str, str, list[str]]:
    by_name = {scheme.short: scheme for scheme in schemes}
    data = by_name["data"]
    if case.workers == 1:
        told = f"needs {_bytes(data.memory_bytes)}"
        if case.memory_bytes is not None:
            fits = "fits" if data.fits else "does not fit"
            told = f"{fits}: {_bytes(data.memory_bytes)} of {_bytes(case.memory_bytes)}"
        return "data", f"one worker: nothing is to be spread, and the model {told}", []
    possible = [scheme for scheme in schemes if scheme.fits is not False]
    there = "" if case.memory_bytes is None else f"{' of' if data.fits else ' against'} {_bytes(case.memory_bytes)}"
    does = "does not fit" if data.fits is False else "fits"
    kept = case.model.activation_bytes(case.precision) * case.batch
    reasons = [
        f"the whole model {does} on a worker: {_bytes(data.memory_bytes)}{there}",
        f"a worker's batch keeps {_bytes(kept)} of activations beside {_bytes(size)} of gradients"
        + (": what is large is best left where it is" if kept > size else ""),
    ]
    if moved and crossover is not None:
        sent = share * moved * case.global_batch
        less = "less" if data.sent_bytes < sent else "more"
        reasons.append(
            f"data parallel sends {less}: {_bytes(data.sent_bytes)} of gradients per worker and step, whatever the "
            f"batch, against {_bytes(sent)} of activations in tensor parallel, which grows with it; they are equal at "
            f"b = S/(n x {_si(moved)}B per sample) = {crossover:.3g} samples per worker, and the batch is {case.batch}"
        )
    if not possible:
        smallest = min(schemes, key=lambda scheme: scheme.memory_bytes)
        times = smallest.memory_bytes / (case.memory_bytes or math.inf)
        reasons.append(
            f"the least memory takes {smallest.name}: {_bytes(smallest.memory_bytes)} per worker, {times:.2g} times "
            "what there is; use more workers, a smaller batch, or recompute activations"
        )
        return "", "none of these ways fits into the memory", reasons
    timed = [scheme for scheme in possible if scheme.efficiency is not None]
    if not timed:
        # Without times the order is that of simplicity: data parallel, then what gives up least for its memory.
        best = possible[0]
        return best.short, f"{best.name}, as far as memory and bytes can tell", reasons
    quickest = max(timed, key=lambda scheme: scheme.efficiency or 0.0)
    best = next(scheme for scheme in timed if (scheme.efficiency or 0.0) >= (quickest.efficiency or 0.0) - CLOSE)
    second = max(
        (scheme for scheme in timed if scheme is not best), key=lambda scheme: scheme.efficiency or 0.0, default=None
    )
    verdict = f"{best.name}: expected efficiency {_percent(best.efficiency or 0.0)} on {case.workers} workers"
    if best is not quickest:
        verdict += f" ({quickest.name} reaches {_percent(quickest.efficiency or 0.0)}: no more than a tie)"
    elif second is not None:
        verdict += f"; next {second.name} with {_percent(second.efficiency or 0.0)}"
    if best.communication_s is not None and best.computing_s is not None:
        reasons.append(
            f"a step computes for {_time(best.computing_s)} and communicates for {_time(best.communication_s)} if "
            "nothing overlaps"
        )
    if case.waited_s is not None and data.communication_s:
        reasons.append(
            f"measured: the run waits {_time(case.waited_s)} per step for gradients, "
            f"{case.waited_s / data.communication_s:.2g} times the {_time(data.communication_s)} of the messages "
            "alone; `horovod-study explain --measure` says where it goes"
        )
    if data.communication_s and case.flop_per_s and case.network:
        # E = t b / (t b + c) = 0.9 at b = 9 c / t.
        per_sample = case.model.train_flop / case.flop_per_s
        needed = math.ceil(9 * data.communication_s / per_sample)
        reasons.append(
            f"data parallel without overlap is at least 90 % efficient from b = 9 x {_time(data.communication_s)} / "
            f"{_time(per_sample)} per sample = {needed:,} samples per worker on"
        )
    return best.short, verdict, reasons


def _missing(case: Case) -> Iterator[str]:
    if case.network is None and case.workers > 1:
        yield (
            "the network, hence all communication times; measure it with `horovod-study bench --out DIR` and give "
            "--bench DIR/bench.json, or give --alpha-us and --gb-per-s"
        )
    if case.flop_per_s is None:
        yield (
            "how fast a worker computes, hence all efficiencies; give --run RUN_DIR of a finished run, --step-ms of "
            "one worker at this batch, or --flops-per-s"
        )
    if case.memory_bytes is None:
        yield "the memory of a worker; give --memory-gb"


def _doubts(case: Case) -> Iterator[str]:
    measured = None if case.network is None else case.network.workers
    per_node = case.workers_per_node or case.workers
    if measured is not None and case.nodes > 1 and measured <= per_node:
        yield (
            f"the network was measured with {measured} workers, which fit on one node, but {case.workers} workers take "
            f"{case.nodes} nodes; measure across nodes"
        )
    elif measured is not None and case.workers > measured:
        yield (
            f"the network was measured with {measured} workers and is taken to be as good with {case.workers}; where "
            "workers share memory or a cable, it is not"
        )
    if case.network is not None and case.network.doubt:
        yield case.network.doubt
    yield (
        "memory counts weights, gradients, optimiser state and kept activations; the framework itself, its buffers and "
        "fragments come on top"
    )
    if case.flop_per_s is not None:
        yield "all layers are taken to compute at the same rate, and smaller pieces as fast as whole ones"


_LAYER_HEADS = ("layer", "parameters", "kept per sample", "handed on", "FLOP forward")
_SCHEME_HEADS = ("way", "memory", "fits", "sent", "communicates", "computes", "efficiency")


def _layer_rows(model: LayeredModel) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    shown = model.layers if len(model.layers) <= 12 else (*model.layers[:6], None, *model.layers[-3:])
    for layer in shown:
        if layer is None:
            rows.append(("...", f"({len(model.layers)} layers)", "", "", ""))
            continue
        kept = f"{layer.activations:,}" + (f" + {layer.indices:,} indices" if layer.indices else "")
        rows.append((layer.name, f"{layer.parameters:,}", kept, f"{layer.output:,}", f"{layer.flop:,}"))
    return rows


def _scheme_rows(schemes: Sequence[_Scheme]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for scheme in schemes:
        fits = {True: "yes", False: "no", None: "?"}[scheme.fits]
        times = ("?" if each is None else _time(each) for each in (scheme.communication_s, scheme.computing_s))
        efficiency = "?" if scheme.efficiency is None else _percent(scheme.efficiency)
        rows.append((scheme.short, _bytes(scheme.memory_bytes), fits, _bytes(scheme.sent_bytes), *times, efficiency))
    return rows


def _si(value: float) -> str:
    """Return a number with three digits and the letter of its thousands, a space between: `614 k`."""
    for power, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * power:
            return f"{_three(value / power)} {letter}"
    return f"{_three(value)} "


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def _bytes(value: float) -> str:
    return f"{_si(value)}B"


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 0.9995:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %" if value < 0.9995 else "100 %"
