"""How often the 95 % intervals of fitted laws hold the truth: every law, every parameter, by simulation.

    python benchmarks/coverage.py [--seeds 100] [--first 0] [--laws ring overlap] [--noise 0.02 0.05]
                                  [--counts 1 2 4 8 16]

Each seed makes a sweep with noise proportional to the speedup and fits the law that made it. A row is one parameter of
one law in one design (worker counts, repeats, noise), or the curve at four times the largest count: covered seeds of
all, the median width of the interval and the truth. Nominal intervals of 95 % cover 90 to 99 of 100. With --counts
every law is measured at these, other than laws across nodes and those with too few counts to be identified.

The noise is independent; or it drifts, repeat by repeat from the fewest to the most workers, with a correlation of 0.9
from one run to the next; or it is heavy-tailed, Student's t with three degrees of freedom. Speedups are relative to a
given baseline, which shares nothing with the runs, where the noise drifts, else to the runs of one worker.
"""

import argparse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitting import fit_quantity, fit_series
from horovod_study.analysis.fit.rows import places
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS
from horovod_study.analysis.laws.law import Law

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
        if LAWS[self.law].of_steps and not self.quantity:
            words.append(self.mode)
        words += ["nodes"] * (self.nodes is not None) + ["quantity"] * self.quantity
        return " ".join(words)

    @property
    def form(self) -> Law:
        """The law in the form that the truth belongs to."""
        law = QUANTITY_LAWS[self.law] if self.quantity else LAWS[self.law].for_mode(self.mode)
        form: Law = law if self.nodes is None else law.across() or law
        return form


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


DESIGNS = (
    *((5, kind) for kind in ("independent", "drift", "heavy tails")),
    *((3, kind) for kind in ("independent", "drift", "heavy tails")),
    (1, "independent"),
)
"""Repeats and noise."""
DRIFT = 0.9
FAR = 4
CURVE = "curve at 4x"


def noise_of(kind: str, places: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of variance 1, (places, repeats)."""
    if kind == "heavy tails":
        return np.asarray(rng.standard_t(3, (places, repeats)) / np.sqrt(3))
    drawn = rng.standard_normal(places * repeats)
    if kind == "drift":
        for i in range(1, len(drawn)):
            drawn[i] = DRIFT * drawn[i - 1] + np.sqrt(1 - DRIFT**2) * drawn[i]
    return drawn.reshape(repeats, places).T


def sweeps(case: Case, *, repeats: int, kind: str, noise: float, seeds: range) -> Iterator[Law]:
    """The law of `case` fitted to one noisy sweep per seed."""
    n = np.repeat(case.counts, repeats)
    nodes = None if case.nodes is None else np.repeat(case.nodes, repeats)
    curve = case.form.at(places(n, nodes), np.array(list(case.truth.values())))
    # Seeds of its own for every case: with shared ones one odd sweep would count against all laws.
    own = zlib.crc32(f"{case.name} {repeats} {kind}".encode())
    for seed in seeds:
        rng = np.random.default_rng([own, seed])
        # A throughput is above zero, whatever a heavy tail says.
        y = curve * np.maximum(1 + noise * noise_of(kind, len(case.counts), repeats, rng).ravel(), 0.01)
        if case.quantity:
            yield fit_quantity(n, y, nodes=nodes, seed=seed, laws=(case.law,)).fits[case.law]
            continue
        table = pd.DataFrame({"workers": n, "samples_per_s": 100 * y})
        table["batch_size"] = 64.0 if case.mode == "weak" else 7_207_200 / n
        table["repeat"] = np.tile(np.arange(repeats), len(case.counts))
        if nodes is not None:
            table["nodes"] = nodes
        given = 100.0 if kind == "drift" else None
        yield fit_series(table, baseline_samples_per_s=given, seed=seed, laws=(case.law,))[""].fits[case.law]


def coverage(case: Case, *, repeats: int, kind: str, noise: float, seeds: range) -> dict[str, tuple[float, int, float]]:
    """Per parameter: the truth, seeds whose interval holds it, and the median width of the interval."""
    far = places([FAR * case.counts[-1]], per_node=None if case.nodes is None else PER_NODE)
    curve = float(case.form.at(far, np.array(list(case.truth.values())))[0])
    truth = {**case.truth, CURVE: curve}
    ends: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    for fitted in sweeps(case, repeats=repeats, kind=kind, noise=noise, seeds=seeds):
        low, high = fitted.interval(far[0], far[1])
        for name in truth:
            ends[name].append((low[0], high[0]) if name == CURVE else fitted.intervals_[name])
    found = {}
    for name, value in truth.items():
        low, high = np.array(ends[name]).T
        found[name] = (value, int(np.sum((low <= value) & (value <= high))), float(np.median(high - low)))
    return found


def cases(laws: Sequence[str], counts: Sequence[int] | None) -> list[Case]:
    """The cases of these laws; with `counts` there, each once, as far as so many can tell the parameters."""
    chosen = [case for case in CASES if case.law in laws]
    if counts is None:
        return chosen
    fit = [case for case in chosen if case.nodes is None and len(case.truth) + 2 <= len(counts)]
    return list({case.name: replace(case, counts=tuple(counts)) for case in reversed(fit)}.values())[::-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed: others than those looked at before")
    parser.add_argument("--laws", nargs="+", choices=sorted(LAWS), default=list(LAWS))
    parser.add_argument("--noise", nargs="+", type=float, default=[0.02], help="standard deviations over the speedup")
    parser.add_argument("--counts", nargs="+", type=int, help="worker counts, instead of the own ones of each case")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    print(
        f"{'size':>4}  {'law':<16} {'places':>6} {'repeats':>7}  {'noise':<12} {'parameter':<12} {'truth':>8} "
        f"{'width':>9}  covered"
    )
    totals: dict[tuple[float, int, str], list[int]] = {}
    for noise, case in product(options.noise, cases(options.laws, options.counts)):
        for repeats, kind in DESIGNS:
            if case.quantity and kind == "drift":
                continue  # a quantity has no baseline, and its runs no order
            found = coverage(case, repeats=repeats, kind=kind, noise=noise, seeds=seeds)
            for name, (truth, held, width) in found.items():
                totals.setdefault((noise, repeats, kind), []).append(held)
                mark = "" if 0.90 <= held / options.seeds <= 0.99 else "  outside 90 to 99 %"
                print(
                    f"{noise:>4.0%}  {case.name:<16} {len(case.counts):>6} {repeats:>7}  {kind:<12} {name:<12} "
                    f"{truth:>8.4g} {width:>9.3g}  {held} of {options.seeds}{mark}",
                    flush=True,
                )
    print(
        f"\n{'size':>4}  {'repeats':>7}  {'noise':<12} {'intervals':>9} {'covered':>8} {'lowest':>7}  below 90 %  "
        "above 99 %"
    )
    for (noise, repeats, kind), counted in totals.items():
        share = np.array(counted) / options.seeds
        print(
            f"{noise:>4.0%}  {repeats:>7}  {kind:<12} {len(share):>9} {share.mean():>8.1%} {share.min():>7.0%}  "
            f"{np.sum(share < 0.9):>10}  {np.sum(share > 0.99):>10}"
        )


if __name__ == "__main__":
    main()
