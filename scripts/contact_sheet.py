"""The figures of a study of a cluster that does not exist at print size on one picture, for docs/gallery.

    PYTHONPATH=.:tests python scripts/contact_sheet.py FOLDER PICTURE.png

FOLDER keeps the runs (tests/make/synthetic_study.py), a benchmark of the machine and the report. In an older tree the
same command shows what its figures looked like.
"""

import json
import sys
from pathlib import Path

from make.bench_document import document
from make.synthetic_study import write_study
from PIL import Image, ImageDraw

from horovod_study import cli, records
from horovod_study.analysis.machine import network

NAMES = (
    *("speedup", "efficiency", "throughput", "epoch_time", "breakdown", "losses", "synchronisation", "transport_ratio"),
    *("batch_size", "learning", "targets", "resources", "load", "roofline", "forecast"),
)
DPI, COLUMNS, GAP = 150, 4, 30
WAYS = (("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"), ("ddp", "nccl"))


def make(folder: Path) -> Path:
    """Write the study and its report below `folder`; return the folder of the figures."""
    runs = folder / "runs"
    write_study(runs, ways=WAYS, workers=(1, 2, 4, 8, 16), steps=200)
    write_study(runs, ways=WAYS[:3], workers=(1, 8), batches=(300, 1200), steps=120, seed=2)
    (folder / "bench.json").write_text(json.dumps(records.finite(network.analyze(document()))))
    words = ["report", str(runs), "--out", str(folder / "report"), "--bench", str(folder / "bench.json")]
    if code := cli.main([*words, "--target", "2e-3"]):
        sys.exit(code)
    return folder / "report" / "figures"


def sheet(figures: Path) -> Image.Image:
    """Return the figures one after the other, each at `DPI` in the column that is shortest so far."""
    pictures, places, ends = [], [], [GAP] * COLUMNS
    for name in NAMES:
        with Image.open(figures / f"{name}.png") as each:
            pictures.append(
                each.convert("RGB").resize(
                    (each.width * DPI // 300, each.height * DPI // 300), Image.Resampling.LANCZOS
                )
            )
        column = ends.index(min(ends))
        places.append((column, ends[column]))
        ends[column] += pictures[-1].height + 2 * GAP
    wide = max(each.width for each in pictures) + GAP
    made = Image.new("RGB", (COLUMNS * wide + GAP, max(ends)), "white")
    pen = ImageDraw.Draw(made)
    for name, picture, (column, y) in zip(NAMES, pictures, places, strict=True):
        pen.text((GAP + column * wide, y - GAP // 2), name, fill="#6f747d", font_size=GAP // 2)
        made.paste(picture, (GAP + column * wide, y + GAP // 4))
    return made.quantize(128, dither=Image.Dither.NONE)


if __name__ == "__main__":
    place, picture = map(Path, sys.argv[1:])
    sheet(make(place)).save(picture, dpi=(DPI, DPI), optimize=True)
