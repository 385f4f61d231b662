"""The figure of a comparison: the ratio of every block, its mean with the interval, and the line at 1."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.report.grammar import Figure, Guide, Panel, Points
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.style import COLORS, QUIET, SeriesStyle
from horovod_study.text.words import plural

_BLOCK, _MEAN = "block", "mean with 95 % interval"
_LOOK = SeriesStyle(label="", color=COLORS[0], marker="o", filled=True, dash="none")


def write_comparison(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt) and the whole document (.json); return the paths.

    `document`: what was compared with its blocks (`studies.pairs`), and what `compare` says of them.
    """
    made = drawing(document)
    texts = {"comparison.txt": made.caption, "comparison.json": document}
    return write_result(directory, texts, {made.name: made.draw})


def drawing(document: Mapping[str, Any]) -> Figure:
    """Return the figure. Where blocks stand apart it has the others, and their median (`typical_ratio`)."""
    counts, blocks, means = document["workers"], [], []
    for place, each in enumerate(counts):
        odd = "typical_" if each["odd_blocks"] else ""
        own = sorted(one["block"] for one in document["blocks"] if one["workers"] == each["workers"])
        numbered = zip(own, each["ratios"], strict=False)  # blocks without a ratio are in none that stands apart
        ratios = [ratio for number, ratio in numbered if number not in each["odd_blocks"]]
        across = place + np.linspace(-0.2, 0.1, len(ratios)) * (len(ratios) > 1)
        blocks += [{"workers": each["workers"], "at": x, "ratio": y} for x, y in zip(across, ratios, strict=True)]
        shown, low, high = (each[f"{odd}{name}"] for name in ("ratio", "low", "high"))
        means.append({"workers": each["workers"], "at": place + 0.2, "ratio": shown, "low": low, "high": high})
    data = pd.concat([pd.DataFrame(rows).assign(series=name) for name, rows in ((_BLOCK, blocks), (_MEAN, means))])
    data[["low", "high"]] = data[["low", "high"]].astype(float)
    seen, whole = data[data["series"] == _BLOCK], data[data["series"] == _MEAN]
    names = [plural(each["workers"], "worker") for each in counts]
    verdicts = [f"{name}: {each['verdict']}." for name, each in zip(names, counts, strict=True)]
    return Figure(
        name="comparison",
        title="B against A",
        alt="Throughput of B as a multiple of that of A, for each worker count.",
        caption=f"Throughput of B ({document['B']['text']}) over that of A ({document['A']['text']}). Grey: the blocks "
        "in the order in which they ran, A and B right after each other or in turns, without those that stand apart. "
        f"{' '.join(verdicts)}",
        data=data,
        panels=[Panel(
            layers=[Guide(level=1.0, held=True, label="equal"), Points(rows=seen, y="ratio", at="at"),
                    Points(rows=whole, y="ratio", low="low", high="high", at="at")],
            y="B's throughput over A's", x="", names=names, limits=(None, None),
        )],
        looks={_BLOCK: replace(_LOOK, label=_BLOCK, color=QUIET), _MEAN: replace(_LOOK, label=_MEAN)},
    )  # fmt: skip
