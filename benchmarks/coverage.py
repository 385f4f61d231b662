"""How often the 95 % intervals of fitted laws hold the truth: every law, every parameter, by simulation.

    python benchmarks/coverage.py [--seeds 100] [--first 0] [--laws ring overlap] [--noise 0.02]

Each seed makes a sweep with noise proportional to the speedup and fits the law that made it. A row is one parameter of
one law in one design (worker counts, repeats): covered seeds of all, the median width of the interval and the truth.
Nominal intervals of 95 % cover 90 to 99 of 100.
"""

import argparse
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitting import ScalingFit, fit_quantity, fit_series
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS
from horovod_study.analysis.laws.law import Law, places

SWEEP = tuple(range(1, 17))
PER_NODE = 4
SPREAD = tuple((n, 1 if n <= PER_NODE else -(-n // PER_NODE)) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A law with its true parameters and where it is measured."""

    law: str
    truth: Mapping[str, float]
    counts: tuple[int, ...] = SWEEP
    nodes: tuple[int, ...] | None = None
    mode: str = "weak"
    quantity: bool = False

    @property
    def name(self) -> str:
        """Law, mode where it has two forms, and what is special."""
        words = [self.law]
        if LAWS[self.law].strong is not None and not self.quantity:
            words.append(self.mode)
        words += ["nodes"] * (self.nodes is not None) + ["quantity"] * self.quantity
        return " ".join(words)

    @property
    def form(self) -> Law:
        """The law in the form that the truth belongs to."""
        law = QUANTITY_LAWS[self.law] if self.quantity else LAWS[self.law].for_mode(self.mode)
        return law if self.nodes is None or law.across is None else law.across


CASES = (
    Case(law="linear", truth=MappingProxyType({"slope": 0.45, "intercept": 0.55})),
    Case(law="amdahl", truth=MappingProxyType({"s": 0.05}), mode="strong"),
    Case(law="gustafson", truth=MappingProxyType({"s": 0.3})),
    Case(law="usl", truth=MappingProxyType({"alpha": 0.05, "beta": 0.001, "gamma": 1.0})),
    Case(law="power", truth=MappingProxyType({"scale": 1.0, "exponent": 0.8})),
    Case(law="log2", truth=MappingProxyType({"intercept": 1.0, "slope": 1.5})),
    Case(law="ring", truth=MappingProxyType({"alpha": 0.01, "beta": 0.15, "gamma": 1.0})),
    Case(law="ring", truth=MappingProxyType({"alpha": 0.004, "beta": 0.05, "gamma": 1.0}), mode="strong"),
    Case(law="tree", truth=MappingProxyType({"hop": 0.04, "gamma": 1.0})),
    Case(law="tree", truth=MappingProxyType({"hop": 0.01, "gamma": 1.0}), mode="strong"),
    Case(law="overlap", truth=MappingProxyType({"alpha": 0.06, "beta": 0.1, "g": 2.0, "gamma": 1.0})),
    Case(
        law="overlap",
        truth=MappingProxyType({"alpha": 0.06, "beta": 0.1, "g": 2.0, "gamma": 1.0}),
        counts=tuple(n for n, _ in SPREAD),
    ),
    Case(law="overlap", truth=MappingProxyType({"alpha": 0.01, "beta": 0.05, "g": 2.0, "gamma": 1.0}), mode="strong"),
    Case(law="constant", truth=MappingProxyType({"level": 1.0})),
    Case(
        law="ring",
        truth=MappingProxyType({"alpha": 0.01, "beta": 0.1, "alpha_across": 0.02, "beta_across": 0.3, "gamma": 1.0}),
        counts=tuple(n for n, _ in SPREAD),
        nodes=tuple(m for _, m in SPREAD),
    ),
    Case(
        law="tree",
        truth=MappingProxyType({"hop": 0.03, "hop_across": 0.08, "gamma": 1.0}),
        counts=tuple(n for n, _ in SPREAD),
        nodes=tuple(m for _, m in SPREAD),
    ),
    Case(law="ring", truth=MappingProxyType({"base": 0.004, "alpha": 2e-4, "beta": 3e-3}), quantity=True),
    Case(law="tree", truth=MappingProxyType({"base": 0.004, "hop": 1e-3}), quantity=True),
)


def sweeps(case: Case, *, repeats: int, noise: float, seeds: range) -> Iterator[ScalingFit]:
    """The law of `case` fitted to one noisy sweep per seed."""
    n = np.repeat(case.counts, repeats)
    nodes = None if case.nodes is None else np.repeat(case.nodes, repeats)
    curve = case.form.at(places(n, nodes), np.array(list(case.truth.values())))
    # Seeds of its own for every case: with shared ones one odd sweep would count against all laws.
    own = zlib.crc32(f"{case.name} {repeats}".encode())
    for seed in seeds:
        y = curve * (1 + noise * np.random.default_rng([own, seed]).standard_normal(len(n)))
        if case.quantity:
            yield fit_quantity(n, y, nodes=nodes, seed=seed, laws=(case.law,)).fits[case.law]
            continue
        table = pd.DataFrame({"workers": n, "samples_per_s": 100 * y})
        table["batch_size"] = 64.0 if case.mode == "weak" else 7_207_200 / n
        if nodes is not None:
            table["nodes"] = nodes
        yield fit_series(table, seed=seed, laws=(case.law,))[""].fits[case.law]


def coverage(case: Case, *, repeats: int, noise: float, seeds: range) -> dict[str, tuple[int, float]]:
    """Per parameter: seeds whose interval holds the truth, and the median width of the interval."""
    held = dict.fromkeys(case.truth, 0)
    widths: dict[str, list[float]] = {name: [] for name in case.truth}
    for fitted in sweeps(case, repeats=repeats, noise=noise, seeds=seeds):
        for name, truth in case.truth.items():
            low, high = fitted.ci95[name]
            held[name] += low <= truth <= high
            widths[name].append(high - low)
    return {name: (held[name], float(np.median(widths[name]))) for name in case.truth}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed: others than those looked at before")
    parser.add_argument("--laws", nargs="+", choices=sorted(LAWS), default=list(LAWS))
    parser.add_argument("--noise", type=float, default=0.02)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    print(f"{'law':<16} {'places':>6} {'repeats':>7}  {'parameter':<12} {'truth':>8} {'width':>9}  covered")
    for case in CASES:
        if case.law not in options.laws:
            continue
        for repeats in (5, 1):
            found = coverage(case, repeats=repeats, noise=options.noise, seeds=seeds)
            for name, (held, width) in found.items():
                mark = "" if 0.90 <= held / options.seeds <= 0.99 else "  outside 90 to 99 %"
                print(
                    f"{case.name:<16} {len(case.counts):>6} {repeats:>7}  {name:<12} {case.truth[name]:>8g} "
                    f"{width:>9.3g}  {held} of {options.seeds}{mark}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
