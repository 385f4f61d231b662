"""Tables of one known law in forms that nobody chose: each is read to the truth or refused, never to another number."""

import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest

from horovod_study.analysis.importers import parse_points
from horovod_study.errors import DataError

CLOSE = 4e-3  # cells have four digits
WORKERS = ["GPUs", "#GPUs", "num_gpus", "workers", "Number of GPUs", "world size", "# A100 GPUs", "N GPUs", "devices"]
RATES = ["{i}/s", "{i}/sec", "Throughput ({i}/s)", "{i} per second", "total {i}/s", "Throughput [{i}/sec]", "avg {i}/s"]
PER_WORKER = ["{i}/s/GPU", "{i}/s per GPU", "Throughput per GPU ({i}/s)", "{i}/sec/device", "{i}/GPU/s"]
ITEMS = ["img", "images", "tokens", "tok", "samples", "seq"]
NO_VALUE = ["OOM", "-", "n/a", "N/A", "nan", "NaN", "failed", "", "--", "None", "out of memory", "timeout"]
EXTRAS = {
    "loss": lambda rng, place: f"{2 + rng.random():.3f}",
    "date": lambda rng, place: f"2024-05-{1 + place:02}",
    "GPU": lambda rng, place: "A100",
    "GPU memory (GB)": lambda rng, place: f"{rng.choice([39.5, 40.1, 41.0])}",
    "remark": lambda rng, place: f"run of {chr(97 + place)}",
    "val accuracy": lambda rng, place: f"{0.7 + 0.001 * place:.4f}",
    "job id": lambda rng, place: str(812000 + 7 * place),
}


@dataclass
class Form:
    """A table, and what it says: {(series, workers): values}, of all series if it has one only."""

    text: str = ""
    truth: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    drawn: dict[str, object] = field(default_factory=dict)


class Drawing:
    """Draws one form; `seed` and `number` say which."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"{seed} {number}")
        pick = self.rng.choice
        self.separator = pick([",", ";", "\t", "markdown", "bars", "grid", "box", "spaces", "rst", "psql"])
        self.comma = pick([False, False, True])
        self.thousands = pick(["", "", " " if self.comma else pick([",", " ", "'"]), "." if self.comma else ""])
        self.kind = pick(["rate", "rate", "per worker", "step", "step", "epoch", "speedup", "efficiency"])
        self.unit_in = pick(["header", "header", "cell"])
        self.prefix = pick(["", "", "", "k"])
        self.layout = pick(["long", "long", "long", "models", "counts", "words", "batches"])
        self.repeats = pick([1, 1, 1, 3])
        self.spread = pick([False, False, False, True])
        self.missing = pick([None, None, *NO_VALUE])
        self.nodes = pick([None, None, None, "of all", "per node", "unclear"])
        self.first = pick([1, 1, 1, 1, 4])
        self.item = pick(ITEMS)
        self.named = (
            self.unit_in == "header" and self.kind in ("rate", "per worker", "speedup") and pick([True, True, False])
        )
        if self.layout == "counts" or (self.layout == "models" and not self.named):
            self.prefix = ""  # of a wide table that does not name what it holds

    def number(self, value: float, decimals: int) -> str:
        """Write a number in the way of this form."""
        text = f"{value:.{decimals}f}"
        whole, _, rest = text.partition(".")
        if self.thousands and len(whole) > 3 and (rest or self.thousands != "."):
            whole = f"{int(whole):,}".replace(",", self.thousands)
        return whole + ((("," if self.comma else ".") + rest) if rest else "")

    def digits(self, value: float, *, three: bool = True) -> int:
        """Return the decimals of four digits; with a comma, three of a rate are what nobody can tell from thousands."""
        places = max(0, 3 - math.floor(math.log10(value)))
        return places + 1 if places == 3 and self.comma and not three else places

    def spreads(self, text: str, unit: str) -> str:
        if self.spread and self.layout not in ("models", "counts"):
            text += self.rng.choice([" ± ", " +/- ", "±"]) + self.number(0.5, 1)
        return f"{text}{unit}"

    def values(self, law: dict[int, float], x1: float) -> tuple[str, list[str], dict[int, list[tuple[str, float]]]]:
        """Return the name of the column of rates, further columns, and cells with what they say at each count."""
        pick, cells = self.rng.choice, {}
        item, prefix, batch = self.item, self.prefix, self.batch
        if self.kind in ("rate", "per worker"):
            name = pick(RATES if self.kind == "rate" else PER_WORKER)
            unit = (
                "/s/GPU"
                if self.kind == "per worker" and (self.layout in ("models", "counts") or pick([True, False]))
                else "/s"
            )
            if self.unit_in == "cell":
                name = pick(["throughput", "Throughput"]) + (" per GPU" if self.kind == "per worker" else "")
            form = name.format(i=prefix + item)
            for count, speedup in law.items():
                value = x1 * speedup / (count if self.kind == "per worker" else 1)
                value /= 1000 if prefix else 1
                shown = self.number(value, self.digits(value, three=False))
                end = f"{prefix} {item}{unit}" if self.unit_in == "cell" else ""
                cells[count] = [(self.spreads(shown, end) if not prefix else f"{shown}{end}", x1 * speedup)]
            return form, [], cells
        if self.kind in ("step", "epoch"):
            factor, unit = pick([(1.0, "s"), (1e3, "ms")] if self.kind == "step" else [(1.0, "s"), (1 / 60, "min")])
            name = pick(
                ["step time", "iteration time", "time per step"]
                if self.kind == "step"
                else ["epoch time", "time per epoch"]
            )
            name = f"{name} ({unit})" if self.unit_in == "header" else name
            for count, speedup in law.items():
                rate = x1 * speedup
                if self.kind == "epoch":
                    seconds, truth = 50_000 / rate, rate / 50_000
                else:
                    seconds = count * batch / rate if self.of_all is not True else batch / rate
                    truth = rate if self.of_all is not None else rate / batch
                shown = self.number(seconds * factor, self.digits(seconds * factor))
                if self.unit_in == "cell" and self.kind == "epoch" and seconds > 1000 and self.rng.random() < 0.7:
                    whole = round(seconds)
                    shown = pick(
                        [f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}", f"{whole // 60} min {whole % 60} s"]
                    )
                    cells[count] = [(shown, truth)]
                else:
                    cells[count] = [(self.spreads(shown, f" {unit}" if self.unit_in == "cell" else ""), truth)]
            return name, [], cells
        name = pick(
            ["speedup", "Speed-up", "speed up"]
            if self.kind == "speedup"
            else ["scaling efficiency", "parallel efficiency"]
        )
        percent = self.kind == "efficiency" and self.rng.random() < 0.7
        for count, speedup in law.items():
            value = speedup if self.kind == "speedup" else speedup / count * (100 if percent else 1)
            end = (
                " %"
                if percent and self.unit_in == "cell"
                else "x"
                if self.kind == "speedup" and self.unit_in == "cell"
                else ""
            )
            cells[count] = [(self.spreads(self.number(value, self.digits(value)), end), speedup)]
        return f"{name} (%)" if percent and self.unit_in == "header" else name, [], cells

    def law(self) -> dict[int, float]:
        serial = self.rng.uniform(0.005, 0.15)
        counts = [self.first * 2**k for k in range(self.rng.randint(3, 5))]
        return {count: 1 / (serial + (1 - serial) / count) for count in counts}

    def draw(self) -> Form:
        """Return the form."""
        rng, form = self.rng, Form(drawn={name: each for name, each in vars(self).items() if name != "rng"})
        self.batch, self.of_all = rng.choice([32, 64, 256]), rng.choice([None, True, False])
        self.of_all = None if self.layout in ("models", "counts") else self.of_all  # a wide table has no batches
        several = self.layout != "long"
        models = rng.sample(["resnet50", "vgg16", "bert", "gpt2"], rng.randint(2, 3)) if several else [""]
        if self.layout == "batches":
            models = rng.sample(["16", "64", "512"], 2)
        rows: list[dict[str, str]] = []
        workers = rng.choice(WORKERS)
        state, per_node = rng.getstate(), rng.choice([2, 4])
        counts = list(self.law())
        name = ""
        for model in models:
            curve = dict(zip(counts, self.law().values(), strict=False))
            curve = {count: 1 / (0.02 + 0.98 / count) for count in counts} if len(curve) < len(counts) else curve
            x1 = 10 ** rng.uniform(0.7, 4.5)
            keep = rng.getstate()
            rng.setstate(state)
            name, _, cells = self.values(curve, x1)
            rng.setstate(keep)
            for count, each in cells.items():
                for place in range(self.repeats if self.layout in ("long", "words", "batches") else 1):
                    cell, truth = each[0]
                    row = {"model": model, workers: str(count), name: cell}
                    if self.kind == "step" and self.of_all is not None:
                        row["global batch" if self.of_all else "batch per GPU"] = str(self.batch)
                    if self.repeats > 1:
                        row["seed"] = str(place)
                    if self.missing is not None and count == counts[-1] and place == 0 and len(counts) > 2:
                        row[name] = self.missing
                    else:
                        form.truth.setdefault((model, count), []).append(truth)
                    if self.nodes and self.layout not in ("counts", "models"):
                        self.with_nodes(row, workers, count, per_node)
                    rows.append(row)
        form.text = self.written(rows, workers, name)
        return form

    def with_nodes(self, row: dict[str, str], workers: str, count: int, per_node: int) -> None:
        nodes = max(1, count // per_node)
        row["nodes"] = str(nodes)
        if self.nodes == "per node":
            row["GPUs per node"] = str(count // nodes)
            del row[workers]
        elif self.nodes == "unclear":
            del row[workers]
            row["gpus"] = str(count // nodes)

    def written(self, rows: list[dict[str, str]], workers: str, name: str) -> str:
        rng = self.rng
        if self.layout == "long":
            for row in rows:
                del row["model"]
        elif self.layout == "words":
            other = rng.choice(["cluster", "model", "precision", "network"])
            rows = [{other if key == "model" else key: cell for key, cell in row.items()} for row in rows]
        elif self.layout == "batches":
            other = rng.choice(["sequence length", "hidden size", "layers"])
            rows = [{other if key == "model" else key: cell for key, cell in row.items()} for row in rows]
        else:
            return self.wide(rows, workers, name)
        for extra in rng.sample(sorted(EXTRAS), rng.randint(0, 3)):
            for place, row in enumerate(rows[:26]):
                row[extra] = EXTRAS[extra](rng, place)
            if len(rows) > 26:
                rows = [{key: cell for key, cell in row.items() if key != extra} for row in rows]
        if rng.random() < 0.5:
            rng.shuffle(rows)
        columns = list(rows[0])
        if rng.random() < 0.5:
            rng.shuffle(columns)
        return self.table([columns, *([row[column] for column in columns] for row in rows)])

    def wide(self, rows: list[dict[str, str]], workers: str, name: str) -> str:
        models, counts = (
            list(dict.fromkeys(row["model"] for row in rows)),
            list(dict.fromkeys(row[workers] for row in rows)),
        )
        cells = {(row["model"], row[workers]): row[name] for row in rows}
        if self.layout == "models":
            header = [workers, *(f"{model} {name}" if self.named else model for model in models)]
            return self.table([header, *([count, *(cells[model, count] for model in models)] for count in counts)])
        style = self.rng.choice(["{} GPUs", "{} GPU", "{}", "n={}", "{} workers", "{}x A100"])
        header = [self.rng.choice(["model", "", name, workers]), *(style.format(count) for count in counts)]
        return self.table([header, *([model, *(cells[model, count] for count in counts)] for model in models)])

    def table(self, rows: list[list[str]]) -> str:
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
        if self.separator in (",", ";", "\t"):
            quote = [[f'"{cell}"' if self.separator in cell else cell for cell in row] for row in rows]
            return "\n".join(self.separator.join(row) for row in quote)
        if self.separator in ("markdown", "bars"):
            lines = [" | ".join(row) for row in padded]
            lines.insert(1, " | ".join("-" * max(3, width) for width in widths))
            return "\n".join(f"| {line} |" if self.separator == "markdown" else line for line in lines)
        if self.separator == "psql":
            lines = [" " + " | ".join(row) for row in padded]
            lines.insert(1, "+".join("-" * (width + 2) for width in widths))
            return "\n".join([*lines, f"({len(rows) - 1} rows)"])
        if self.separator in ("grid", "box"):
            rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
            lines = ["| " + " | ".join(row) + " |" for row in padded]
            if self.separator == "grid":
                return "\n".join([rule, lines[0], rule.replace("-", "="), *lines[1:], rule])
            rule, lines = (
                re.sub("-", "─", rule).replace("+", "┼"),
                [line.replace(" | ", " │ ").replace("| ", "│ ", 1).removesuffix("|") + "│" for line in lines],
            )
            return "\n".join([rule, lines[0], rule.replace("─", "═"), *lines[1:], rule])
        lines = ["  ".join(row) for row in padded]
        if self.separator == "rst":
            rule = "  ".join("=" * max(1, width) for width in widths)
            lines = [rule, lines[0], rule, *lines[1:], rule]
        return "\n".join(lines)


def verdict(form: Form) -> str:
    """Return whether a form is read to the truth: right, refused with a reason, or wrong in a way."""
    try:
        frame = parse_points(form.text, "t")
    except DataError as error:
        assert "\n" not in str(error)
        return f"refused: {re.sub(r'[0-9]+', 'N', str(error))[:160]}"
    names = frame["series"] if "series" in frame else [""] * len(frame)
    found: dict[tuple[str, int], list[float]] = {}
    known = {name for name, _ in form.truth}
    for name, count, rate in zip(names, frame["workers"], frame["samples_per_s"], strict=True):
        of = [each for each in known if each in str(name).split()] if known != {""} else [""]
        if len(of) != 1:
            return f"wrong: series {name!r}"
        found.setdefault((of[0], int(count)), []).append(float(rate))
    if len(set(names)) != len(known):
        return f"wrong: {len(set(names))} series of {len(known)}"
    if sorted(found) != sorted(form.truth):
        return f"wrong: {sorted(found)} of {sorted(form.truth)}"
    for place, values in form.truth.items():
        if sorted(found[place]) != pytest.approx(sorted(values), rel=CLOSE):
            return f"wrong: {place} has {found[place]}, not {values}"
    return "right"


def verdicts(seed: int, forms: int) -> Counter[str]:
    """Return how many forms of a seed are right, refused, wrong; of what is wrong the form is printed."""
    count: Counter[str] = Counter()
    for number in range(forms):
        form = Drawing(seed, number).draw()
        told = verdict(form)
        count[told.split(":")[0]] += 1
        if told.startswith("wrong"):
            print(number, told, form.drawn, form.text, sep="\n")
    return count


def test_two_hundred_forms_of_a_table_are_read_to_the_truth_or_refused() -> None:
    count = verdicts(seed=39, forms=200)

    assert count["wrong"] == 0
    assert count["right"] >= 160
