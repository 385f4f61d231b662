"""Loading alone, training on one batch that is already there, and both together: which of them bounds a run?

The three are measured for each loader in turn, several rounds, in an order shuffled again in each round. The step is
the trainer's, with the same model objects throughout: model, optimiser and arithmetic of the configuration, one worker,
no communication. Where several workers share a host, each of them loads; compare there with as many of these at once.

Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from horovod_study.comm import Backend, detect, open_backend
from horovod_study.errors import ConfigError, nearest
from horovod_study.measure.clock import DeviceStamps, LapClock, now
from horovod_study.strain import dataset as data
from horovod_study.strain.loaders import Batch, Loader, open_loader
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, accelerate, make_optimizer
from horovod_study.strain.options import LOADERS, StrainConfig, parse_widths
from horovod_study.strain.room import keep_freed_memory
from horovod_study.strain.trainer import train_step
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

WARMUP_STEPS = 10

Comparison = Mapping[str, Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, min and max of a number that was measured once per round."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def judged(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found of a loader, with `bound`, what bounds the run, and `verdict`, what that costs in words.

    `found`: loader, note, and spreads of `loading` (samples/s, nothing computed), `cached` (samples/s, one batch over
    and over), `together` (samples/s), `waiting` (part of a step of `together` spent in getting the next batch),
    `of_cached` (together / cached of the same round), `start_s` (from opening the loader to the first batch) and
    `restart_s` (from asking for another epoch to its first batch).

    `bound`: `loading`, `computing`, or `either` where the ranges over the rounds overlap. `competition`: the loader
    alone is faster than the step, but not beside it, when both want the same cores.
    """
    loads, cached, waiting = found["loading"], found["cached"], found["waiting"]["median"]
    ratio = loads["median"] / cached["median"]
    if loads["min"] > cached["max"]:
        bound = "competition" if waiting >= 0.25 else "computing"
    else:
        bound = "loading" if loads["max"] < cached["min"] else "either"
    other = "another loader may help" if waiting >= 0.05 else ""
    one_after_the_other = 1 / (1 / loads["median"] + 1 / cached["median"])
    if bound == "computing" and found["together"]["median"] < 0.85 * one_after_the_other:
        other = "that is slower than one after the other: loader processes or other programs take the cores"
    who, but, advice = {
        "computing": ("computing bounds the run", "", other),
        "competition": (
            *("loading and computing compete for the cores", ", but does not keep up beside it"),
            "use a loader without processes, or give them cores of their own",
        ),
        "loading": ("loading bounds the run", "", "use another loader, or more loader processes where cores are free"),
        "either": (
            *("neither bounds the run by itself", ", and the rounds overlap"),
            "use another loader, or measure longer",
        ),
    }[bound]
    digits = ".3g" if loads["min"] > cached["max"] else ".2f"
    verdict = (
        f"{who}: this loader alone brings {ratio:{digits}} times the curves the step takes{but}; "
        f"waiting for data is {100 * waiting:.1f} % of a step, and both together reach "
        f"{100 * found['of_cached']['median']:.0f} % of computing alone{advice and f'; {advice}'}"
    )
    return {**found, "bound": bound, "verdict": verdict}


def to_text(comparison: Comparison) -> list[str]:
    """Return a table and the verdicts for people."""
    heads = "loader", "loading alone", "one cached batch", "both together", "waiting", "first batch", "next epoch"
    loaders, rows = comparison["loaders"], []
    for each in loaders:
        rates = []
        for name in ("loading", "cached", "together"):
            digits = 0 if each[name]["median"] >= 1e5 else 1
            middle, low, high = (f"{each[name][end] / 1e3:,.{digits}f}" for end in ("median", "min", "max"))
            rates.append(f"{middle} ({low} - {high})")
        starts = (each[name]["median"] for name in ("start_s", "restart_s"))
        times = (f"{time:.1f} s" if time >= 1 else f"{time * 1e3:.1f} ms" for time in starts)
        rows.append((each["loader"], *rates, f"{100 * each['waiting']['median']:.1f} %", *times, each["bound"]))
    return [
        f"batch {comparison['batch']}, {comparison['device']}, {plural(comparison['threads'], 'thread')}, "
        f"{comparison['curves']:,} curves; thousand samples/s, median of {comparison['rounds']} rounds of "
        f"{comparison['seconds']:g} s (smallest - largest)",
        "",
        *to_lines(table_of((*heads, "bound by"), rows, texts=(0, len(heads))), indent=2, gap=3),
        "",
        *(f"  {each['loader']}: {each['verdict']}" for each in loaders),
        *(f"  {each['loader']}: {each['note']}" for each in loaders if each["note"]),
    ]


def loader_options(name: str) -> dict[str, Any]:
    """Return the run options meant by `memory`, `dataloader`, or `dataloader:2` for two loader processes."""
    loader, colon, processes = name.partition(":")
    if loader not in LOADERS or (colon and not (loader == "dataloader" and processes.isdecimal())):
        raise ConfigError(
            f"loader {name!r} is not known{nearest(loader, LOADERS)}; allowed: {', '.join(LOADERS)}, and dataloader:N "
            "for N loader processes"
        )
    return {"loader": loader, "loader_processes": int(processes or 0)}


def compare_loaders(
    config: StrainConfig,
    dataset: data.Dataset,
    names: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    others: Mapping[str, Callable[[], Loader]] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Compare the loaders `names` (see `loader_options`) on `dataset` with the batch and the step of `config`.

    Each measurement lasts at least `seconds`, all three are repeated `rounds` times. `others` are further loaders by
    name, with the batches per epoch of ours. Returns the conditions, and `loaders` as `judged` has them. Raises
    ConfigError for unknown names and what this device cannot do.
    """
    if rounds < 1 or not seconds > 0:
        raise ConfigError(
            f"{rounds} rounds of {seconds:g} s measure nothing; use at least one round and a time above 0"
        )
    keep_freed_memory()  # as the trainer does
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    batches = data.Batches(dataset.train_size, batch=config.batch, rank=0, workers=1, seed=config.seed)
    openers: dict[str, Callable[[], Loader]] = {
        name: partial(open_loader, replace(config, **loader_options(name)), dataset, batches, device) for name in names
    }
    openers |= others or {}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in openers}
    notes: dict[str, str] = {}
    shuffle = random.Random(1)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads)
        step = LoneStep(config, device)
        for number in range(rounds):
            for name in shuffle.sample(list(openers), len(openers)):
                on_progress(f"batch {config.batch}, round {number + 1} of {rounds}: {name}")
                values, notes[name] = _visited(step, openers[name], shuffle, batches.steps_per_epoch, seconds)
                found[name].append(values)
    return {
        "dataset": str(dataset.path),
        "curves": dataset.size,
        "batch": config.batch,
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "threads": config.threads,
        "rounds": rounds,
        "seconds": seconds,
        "loaders": [
            judged({"loader": name, "note": notes[name]} | {key: spread([run[key] for run in runs]) for key in runs[0]})
            for name, runs in found.items()
        ],
    }


class LoneStep:
    """The trainer's step without its recording, on one worker, or on each of those of `backend`."""

    def __init__(self, config: StrainConfig, device: torch.device, backend: Backend | None = None) -> None:
        torch.manual_seed(config.seed)
        self.arithmetic = Arithmetic(config if backend else replace(config, pin_memory=False), device)
        self.bare_model = StressCNN(
            widths=parse_widths(config.widths), input_scaling=config.input_scaling, memory_format=config.memory_format
        ).to(device)
        alone = replace(config, backend="serial", transport="none", reduction="auto")
        self.backend = backend or open_backend(alone, detect({}))
        bare_optimizer, _ = make_optimizer(config, self.bare_model.parameters(), workers=self.backend.workers)
        called = accelerate(self.bare_model, config, device)
        self.model, self.optimizer = self.backend.bind(called, bare_optimizer)
        self.arithmetic.bind(self.bare_model, self.optimizer, self.backend)
        self.device = device
        self.clock = LapClock(device=DeviceStamps() if device.type == "cuda" else None)

    def __call__(self, curves: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Make one update from curves (B, C, L) and targets (B, P); return the loss, shape ()."""
        return train_step(self.model, self.optimizer, curves, targets, self.backend, self.clock, self.arithmetic)

    def wait(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _visited(
    step: LoneStep, opener: Callable[[], Loader], shuffle: random.Random, steps_per_epoch: int, seconds: float
) -> tuple[dict[str, float], str]:
    """Return the numbers of one visit to a loader, under the names that `judged` takes, and the loader's note."""

    def trained(parts: Iterator[Batch], most: int, until: float = math.inf) -> tuple[int, Mapping[str, Any]]:
        """Train on at most `most` batches, or to the moment `until`; return the steps made and their laps."""
        step.clock.start()
        done = 0
        while done < most and (not done or now() < until):  # one at least, however long this process was kept waiting
            step.clock.begin()
            curves, targets = next(parts)
            step.clock.lap("data")
            step(curves, targets)
            done += 1
        step.wait()
        return done, step.clock.drain()

    def rate_of(epochs: Iterator[Iterator[Batch]], *, train: bool) -> tuple[float, float]:
        """Return the samples/s of training, or of taking batches and doing nothing, and the part that data takes."""
        count, spent_s, data_s, step_s = 0, 0.0, 0.0, 0.0
        while spent_s < seconds:
            parts = next(epochs)  # drawing the order is outside, as in the trainer
            step.wait()
            opened = now()
            until = opened + seconds - spent_s
            if train:
                done, columns = trained(parts, steps_per_epoch, until)
                data_s += float(columns["data_s"].sum())
                step_s += float(columns["step_s"].sum())
            else:
                done = 1 + next((at for at, _ in enumerate(parts) if now() >= until), steps_per_epoch - 1)
                step.wait()
            spent_s += now() - opened
            count += done
        return count * len(cached[0]) / spent_s, data_s / step_s if train else 1.0

    began = now()
    with closing(opener()) as loader:
        first = next(loader.epoch(0))
        step.wait()
        values = {"start_s": now() - began}
        cached = first[0].clone(), first[1].clone()
        trained(iter([cached] * WARMUP_STEPS), WARMUP_STEPS)
        epochs = map(loader.epoch, itertools.count(1))
        kinds = {"loading": epochs, "cached": itertools.repeat(itertools.repeat(cached)), "together": epochs}
        for kind in shuffle.sample(list(kinds), len(kinds)):
            rate, waiting = rate_of(kinds[kind], train=kind != "loading")
            values |= {kind: rate} | ({"waiting": waiting} if kind == "together" else {})
        values["of_cached"] = values["together"] / values["cached"]
        asked = now()
        next(next(epochs))
        step.wait()
        return {**values, "restart_s": now() - asked}, loader.note
