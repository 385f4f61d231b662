"""The figure of a learning-rate range test: loss against rate, with the rates that were read off it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from horovod_study.analysis.learning.lr_range import UNSTEADY, RangeTest
from horovod_study.records import finite
from horovod_study.report.grammar import Curve, Figure, Guide, Panel
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.style import COLORS, QUIET, SeriesStyle

NAME = "lr_range"
_LINE = SeriesStyle(label="running median", color=COLORS[0], marker=".", filled=True, dash="-")
_STEP = replace(_LINE, label="loss of a step", color=QUIET)
_RATES = {"steepest_rate": "steepest descent", "diverged_rate": "diverges", "suggested": "suggested"}


def write_lr_range(test: RangeTest, directory: Path, *, batch: int) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt), the curve (.csv) and the result (.json).

    `batch`: curves per step of all workers, for the caption. Returns the paths.
    """
    made = drawing(test, batch=batch)
    texts = {f"{NAME}.txt": made.caption, f"{NAME}.csv": made.data, f"{NAME}.json": finite(test)}
    return write_result(directory, texts, {NAME: made.draw})


def drawing(test: RangeTest, *, batch: int) -> Figure:
    """Return the figure; far beyond the divergence there is nothing to see."""
    curve = pd.DataFrame({"lr": test.rates, "loss": test.losses, "smoothed_loss": test.smooth})
    last = np.inf if test.diverged_rate is None else test.diverged_rate
    top = 6.0 * float(test.smooth[test.rates < last].max())
    shown = curve[(curve["lr"] <= 20 * last) & (curve["loss"] > 0)]
    shown = shown.assign(**{name: shown[name].where(shown[name] < top) for name in ("loss", "smoothed_loss")})
    guides = [
        Guide(label=f"{label}: {rate:.2g}", x=(rate, rate), y=(1e-30, 1e30), how={"linestyle": (0, (1 + 3 * place, 2))})
        for place, (name, label) in enumerate(_RATES.items())
        if (rate := getattr(test, name)) is not None
    ]
    thin, wide = {"linewidth": 0.6, "alpha": 0.5}, {"linewidth": 1.7}
    layers = [
        Curve(rows=shown.assign(series="step"), y="loss", x="lr", how=thin, marked=True),
        Curve(rows=shown.assign(series="line"), y="smoothed_loss", x="lr", how=wide, marked=True),
    ]
    return Figure(
        name=NAME,
        title="Learning-rate range test",
        alt="Training loss against a rising learning rate.",
        caption="Learning-rate range test: training loss (mean square error of the normalised targets) of each of "
        f"{len(test.rates):,} steps with {batch} curves while the rate rises exponentially from {test.rates[0]:.2g} to "
        f"{test.rates[-1]:.2g}. Line: running median over {test.window} steps; what is far above is not drawn. "
        f"It diverges where it stays above {UNSTEADY:g} times its smallest value. Suggested: {test.reason}.",
        data=curve,
        panels=[Panel(layers=[*guides, *layers], y="Training loss (MSE)", x="Learning rate", log="y", decades=True)],
        looks={"line": _LINE, "step": _STEP},
    )
