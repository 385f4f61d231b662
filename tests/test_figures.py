"""Figures for print: letters that fit, nothing on top of anything else, series that stay apart, data beside each one.

Every drawing is checked in two looks (text width with sans, column with serif letters), the two others are slow tests.
"""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from drawn_figures import complaints, shown_texts
from make.synthetic_runs import evaluation_table, run_table
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from horovod_study import cli
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.study import analyze
from horovod_study.errors import ConfigError
from horovod_study.report import grammar as panels
from horovod_study.report.figures import catalogue
from horovod_study.report.kit import files, style

LOOKS = {
    "text sans": style.FigureFormat(),
    "column serif": style.FigureFormat.of("column", "serif"),
    "column sans": style.FigureFormat.of("column"),
    "text serif": style.FigureFormat.of("text", "serif"),
}
PER_NODE = {"alpha": 8, "gpu2": 4}
CHECKED = {
    *("speedup", "efficiency", "breakdown", "throughput", "boundary", "synchronisation", "batch_size"),
    *("forecast", "learning", "targets", "epoch_time", "regression", "transport_ratio"),
}
WAYS = (("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"), ("ddp", "nccl"))


def cluster(*, batches=(256,), workers=(1, 2, 4, 8, 16), ways=WAYS, partitions=tuple(PER_NODE)):
    """Return runs of partitions whose nodes are filled one after the other; steps take longer over several nodes."""
    tables = []
    for number, (partition, batch, way) in enumerate(itertools.product(partitions, batches, ways)):
        alike = {"serial": way, "ddp": ("ddp", "gloo")}.get(way[0], ("horovod", "mpi"))
        table = run_table(
            workers, ways=(alike,), partition=partition, batch=batch, failed=(), study="thesis", seed=number
        )
        nodes = np.ceil(table["workers"] / PER_NODE[partition]).astype(int)
        longer = (1 + 0.06 * (nodes - 1)) * (1.04 if way[1] == "mpi" else 1.0) * (0.5 + batch / 512)
        seconds = {name: table[name] * longer for name in table.columns if "_s" in name and "samples" not in name}
        names = [f"thesis/{partition}-{way[0]}-{way[1]}-{batch}-{name.split('/')[1]}" for name in table["run"]]
        known = {"backend": way[0], "transport": way[1], "nodes": nodes, "run": names}
        tables.append(table.assign(**seconds, **known, samples_per_s=table["samples_per_s"] / longer))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def study():
    """A study with every figure that run tables alone can have: nodes, partitions, transports, batches, learning."""
    runs = pd.concat([cluster(partitions=("alpha",)), cluster(partitions=("gpu2",), ways=WAYS[:2])], ignore_index=True)
    more = cluster(batches=(64, 1024), workers=(2, 8), ways=WAYS[1:3], partitions=("alpha",))
    return analyze(pd.concat([runs, more], ignore_index=True), evaluation_table(runs, epochs=4))


@pytest.fixture(scope="module")
def drawn(study):
    """Return (look, figure) of each drawing, drawn and settled once per look."""
    made = {}

    def draw(name):
        if name not in made:
            look = LOOKS[name]
            made[name] = []
            for drawing in catalogue.drawings(study):
                if drawing.name not in CHECKED:
                    continue
                with style.style(look):
                    made[name].append((drawing, style.settled(drawing.draw(look.width_in))))
        return made[name]

    return draw


# ---------------------------------------------------------------------------------------------------- layout


def check_layout(drawn, name: str) -> None:
    look = LOOKS[name]
    found = []
    low, high = (7, 8.1) if look.width_in < style.NARROW_IN else (8, 9.1)
    for drawing, figure in drawn(name):
        with style.style(look):
            found += complaints(figure, f"{drawing.name}, {name}")
            sizes = {text.get_fontsize() for text in shown_texts(figure)}
        if min(sizes) < low or max(sizes) > high:
            found.append(f"{drawing.name}, {name}: letters of {sorted(sizes)} pt")
        if figure.get_figheight() > 10:
            found.append(f"{drawing.name}, {name}: {figure.get_figheight():.1f} in are more than a page has")
        assert figure.get_figwidth() == pytest.approx(look.width_in)
    assert found == []


@pytest.mark.parametrize("name", list(LOOKS)[:2])
@pytest.mark.slow
def test_no_text_leaves_the_figure_or_lies_on_another(drawn, name):
    check_layout(drawn, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOOKS)[2:])
def test_no_text_leaves_the_figure_or_lies_on_another_in_the_other_looks(drawn, name):
    check_layout(drawn, name)


def test_the_check_of_the_layout_sees_what_it_looks_for(golden):
    with style.style():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.text(0.5, 0.5, "one", transform=axes.transAxes)
        axes.text(0.52, 0.5, "two", transform=axes.transAxes)
        axes.text(1.1, 0.5, "far away", transform=axes.transAxes)
        found = " ".join(complaints(figure, "it"))

    assert "'one' is on 'two'" in found
    golden(found)


# ---------------------------------------------------------------------------------------------------- what is drawn

SCALES = (1.0, 1000.0, 100.0, 1 / 1000, 1 / 60, 1 / 3600, 1 / 1e6)
"""From the columns to the axes: ms, per cent, thousands, minutes, hours, MJ."""


def drawn_heights(figure: Figure) -> list[np.ndarray]:
    """Return the heights of marked points, error bars and bars, one array per artist, where they are on data."""
    found = []
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_marker() not in ("None", "", None, "x") and line.get_transform() == axes.transData:
                found.append(np.asarray(line.get_ydata(), dtype=float))
        for collection in axes.collections:
            if isinstance(collection, LineCollection):
                found.append(np.array([y for segment in collection.get_segments() for _, y in segment]))
        for bars in axes.containers:
            found.append(np.array([bar.get_height() for bar in bars]))
    return [values[np.isfinite(values) & (values != 0)] for values in found]


@pytest.mark.slow
def test_every_point_that_is_drawn_stands_in_the_file_of_data(drawn, tmp_path):
    checked = 0
    for drawing, figure in drawn("text sans"):
        path = tmp_path / "data.csv"
        drawing.data.to_csv(path, index=False)
        numbers = pd.read_csv(path).select_dtypes("number").to_numpy(dtype=float)
        known = np.unique(numbers[np.isfinite(numbers)])
        for values in drawn_heights(figure):
            places = [np.isclose(values[:, None], scale * known[None, :], rtol=1e-9).any(axis=1) for scale in SCALES]
            assert any(place.all() for place in places), (drawing.name, values)
            checked += len(values)
    assert checked > 200 and {drawing.name for drawing, _ in drawn("text sans")} == CHECKED


def test_every_figure_against_workers_has_spread_baseline_and_formula(drawn, golden):
    captions = {drawing.name: drawing.caption for drawing, _ in drawn("text sans")}

    assert {"speedup", "efficiency", "breakdown", "throughput", "forecast", "learning", "targets"} <= set(captions)
    for name in ("speedup", "efficiency"):
        golden(captions[name], "PyTorch")
        assert "X(N) / " in captions[name]
    for name in ("speedup", "efficiency", "throughput", "forecast"):
        assert "further workers need another node (partition: nodes)." in captions[name], name


def test_the_parts_beyond_the_measurements_are_dashed_lighter_and_on_grey(drawn):
    (figure,) = [figure for drawing, figure in drawn("text sans") if drawing.name == "speedup"]
    axes = figure.axes[0]
    last = 16
    beyond = [line for line in axes.lines if line.get_linewidth() == 1.2 and min(line.get_xdata()) >= last]
    inside = [line for line in axes.lines if line.get_linewidth() == 1.7]

    assert beyond and inside
    assert {line.get_alpha() for line in beyond} == {0.65} and {line.get_alpha() for line in inside} == {1}
    assert any(patch.get_facecolor()[:3] == pytest.approx(to_rgb(style.SHADE)) for patch in axes.patches)


def test_node_boundaries_stand_between_the_last_count_of_a_node_and_the_next():
    one = pd.DataFrame({"workers": [1, 2, 4, 8, 16], "nodes": [1, 1, 1, 1, 2]})
    small = pd.DataFrame({"workers": [1, 2, 4, 8, 16], "nodes": [1, 1, 1, 2, 4]})
    spread = pd.DataFrame({"workers": [2, 2, 4], "nodes": [1, 2, 4]})
    open_end = pd.DataFrame({"workers": [1, 3, 6], "nodes": [1, 1, 2]})
    mixed = pd.DataFrame({"workers": [2, 8, 4], "nodes": [1, 1, 2]})

    assert panels._boundaries(one, logarithmic=False) == [(8.5, 2)]
    assert panels._boundaries(small, logarithmic=False) == [(4.5, 2), (8.5, 3)]
    assert panels._boundaries(spread, logarithmic=False) == [(2.0, 2), (3.0, 4)]
    assert panels._boundaries(open_end, logarithmic=False) == [(3.5, 2)]
    assert panels._boundaries(mixed, logarithmic=False) == []
    assert panels._boundaries(one, logarithmic=True) == [(math.sqrt(72), 2)]


def test_every_figure_against_workers_marks_the_nodes(drawn):
    for drawing, figure in drawn("text sans"):
        if drawing.name in ("speedup", "efficiency", "throughput", "forecast"):
            words = " ".join(text.get_text() for text in shown_texts(figure))
            assert "alpha: 2" in words and "gpu2: 2" in words, drawing.name


def test_words_about_nodes_and_what_is_extrapolated_are_above_the_data(drawn):
    for drawing, figure in drawn("text sans"):
        found = [(axes, text) for axes in figure.axes for text in axes.texts]
        about = [
            (axes, text) for axes, text in found if re.fullmatch(r"\w+: \d|extrapolated|forecast", text.get_text())
        ]
        assert about or drawing.name not in ("speedup", "efficiency", "throughput", "forecast", "weak_scaling")
        for axes, text in about:
            assert text.get_window_extent().y0 >= axes.bbox.y1, (drawing.name, text.get_text())


@pytest.mark.parametrize(
    ("counts", "logarithmic", "ticks"),
    [
        (range(1, 101), False, [1, *range(10, 101, 10)]),
        (range(1, 101), True, [1, 2, 4, 8, 16, 32, 64]),
        ([1, 2, 4, 8, 16, 32, 64, 128], True, [1, 2, 4, 8, 16, 32, 64, 128]),
        ([1, 2, 4, 8, 16, 32, 64, 128], False, [1, 16, 32, 64, 128]),
        ([1, 3, 6], False, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_ticks_are_measured_counts_or_of_many_round_ones(counts, logarithmic, ticks):
    with style.style():
        axes = Figure(figsize=(4, 2)).subplots()
        panels.count_axis(axes, list(counts), max(counts), 4.0, logarithmic=logarithmic)

        assert list(axes.get_xticks()) == ticks


def test_a_caption_says_for_which_letters_there_is_no_glyph(tmp_path):
    with style.style():
        figure = Figure(figsize=(3, 2))
        figure.text(0.1, 0.5, "\u5bcc\u5cb3: Horovod/MPI \u2265 2")
    files.write_result(tmp_path, {"it.txt": "What is drawn."}, {"it": lambda _: figure})

    (words,) = (tmp_path / "it.txt").read_text().splitlines()
    assert words == "What is drawn. Boxes stand for letters without a glyph in DejaVu Sans: \u5bcc\u5cb3"


# ---------------------------------------------------------------------------------------------------- colours

DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
"""Machado, Oliveira and Fernandes (2009), A physiologically-based model for simulation of color vision deficiency,
severity 1.0, on linear RGB."""
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def lab(color: str, seen_through=None) -> np.ndarray:
    """Return CIELAB (D65) of a colour, as someone with a missing kind of cone sees it."""
    value = np.array(to_rgb(color))
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    if seen_through is not None:
        linear = np.clip(np.array(seen_through) @ linear, 0, 1)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = matrix @ linear / np.array([0.9505, 1.0, 1.089])
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_series_stay_apart_for_the_colour_blind_and_in_grey():
    runs = cluster(workers=(1, 2), ways=(*WAYS, ("horovod", "gloo"), ("ddp", "gloo")))
    looks = list(style.series_styles(scaling_points(runs)).values())
    looks = [look for look in looks if not look.ring]

    assert len(looks) == 10
    for one, other in itertools.combinations(looks, 2):
        marks = (one.marker, one.filled) != (other.marker, other.filled)
        dashes = one.dash != other.dash
        lighter = abs(lab(one.color)[0] - lab(other.color)[0])
        assert marks, (one, other)
        assert dashes or lighter > 6, (one.label, other.label, lighter)  # lines without their marks, in grey
        for eyes in (None, DEUTERANOPIA, PROTANOPIA):
            apart = float(np.linalg.norm(lab(one.color, eyes) - lab(other.color, eyes)))
            assert dashes or apart > 15, (one.label, other.label, apart)


def test_neighbours_of_the_palette_differ_for_the_colour_blind():
    for one, other in itertools.combinations(style.COLORS[:6], 2):
        for eyes in (None, DEUTERANOPIA):
            assert np.linalg.norm(lab(one, eyes) - lab(other, eyes)) > 10, (one, other)


def test_colour_is_of_partition_and_backend_and_the_dash_of_the_transport():
    looks = style.series_styles(scaling_points(cluster(workers=(1, 2))))
    colors = {}
    for name, look in looks.items():
        if not look.ring:
            colors.setdefault((name.split(" ")[0], name.split(" ")[1].split("/")[0]), set()).add(look.color)

    assert all(len(each) == 1 for each in colors.values()), colors
    assert len(set.union(*colors.values())) == 4
    for name, look in looks.items():
        if "/nccl" in name or "/mpi" in name:
            assert (look.dash == "-") == ("/nccl" in name), name


@pytest.mark.slow
def test_a_series_looks_the_same_in_every_figure_and_study():
    """With other worker counts, batches and orders of rows a study gives the same ways the same looks."""
    runs = cluster(workers=(1, 2))
    first = style.series_styles(scaling_points(runs))
    more = cluster(workers=(1, 2, 4), batches=(256, 512)).sample(frac=1, random_state=3)
    second = style.series_styles(scaling_points(more))

    assert len(first) == 8
    for name, look in first.items():
        assert second[name] == look, name


def test_lines_of_a_series_have_its_colour_in_every_figure(study, drawn):
    looks = style.series_styles(study.points)
    allowed = {look.color for look in looks.values()}
    for drawing, figure in drawn("text sans"):
        if drawing.name in ("speedup", "efficiency", "throughput", "forecast", "boundary", "synchronisation"):
            marked = [line for axes in figure.axes for line in axes.lines if line.get_marker() in style.MARKERS]
            seen = {line.get_markeredgecolor() for line in marked} | {line.get_markerfacecolor() for line in marked}
            assert seen - {style.PAPER, "none"} <= allowed | {style.QUIET}, drawing.name


# ---------------------------------------------------------------------------------------------------- the look


@pytest.mark.parametrize(
    ("width", "font", "words"),
    [
        ("wide", "sans", "wide"),
        ("39.9", "sans", "39.9 mm"),
        ("401", "sans", "400 mm"),
        ("nan", "sans", "400 mm"),
        ("inf", "sans", "400 mm"),
        ("-150", "sans", "-150 mm"),
        ("text", "comic", "--font"),
    ],
)
def test_a_look_that_cannot_be_is_refused_in_one_line(width, font, words, golden):
    with pytest.raises(ConfigError) as refused:
        style.FigureFormat.of(width, font)

    assert "\n" not in str(refused.value)
    golden(str(refused.value), words)


def test_widths_are_words_or_millimetres():
    assert style.FigureFormat.of("text") == style.TEXT
    assert style.FigureFormat.of("column").width_in == pytest.approx(71.12 / 25.4)
    assert style.FigureFormat.of("88.9").width_in == pytest.approx(3.5)
    assert style.FigureFormat.of("40").width_in * 25.4 == pytest.approx(40)


@pytest.mark.slow
def test_files_have_the_width_and_the_embedded_letters_that_were_asked_for(study, tmp_path, monkeypatch):
    (speedup,) = [drawing for drawing in catalogue.drawings(study) if drawing.name == "speedup"]
    monkeypatch.setattr(catalogue, "drawings", lambda analysis: [speedup])
    look = style.FigureFormat.of("column", "serif")
    paths = catalogue.write_figures(study, tmp_path / "one", look=look)
    again = catalogue.write_figures(study, tmp_path / "two", look=look)
    content = (tmp_path / "one" / "speedup.pdf").read_bytes()

    assert [path.suffix for path in paths] == [".pdf", ".svg", ".png", ".txt", ".csv"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", content)[1]) == pytest.approx(2.8 * 72)
    assert b"STIXGeneral" in content and b"/FontFile2" in content and b"/Type3" not in content
    assert b"DejaVuSans" not in content


def test_a_letter_that_the_serif_font_lacks_comes_from_the_other():
    with style.style(style.FigureFormat(font="serif")):
        figure = Figure(figsize=(2, 1))
        figure.text(0.1, 0.5, "\u0416\u2588 alpha \u2265 2")
        content = style.to_bytes(figure, "pdf")

    assert b"STIXGeneral" in content


def test_folding_loses_no_letter():
    with style.style():
        text = "alpha: Horovod/NCCL (stock settings, hooks), batch 75, lr 0.001"
        broken = style.folded(text, 1.0)

        assert broken.count("\n") >= 2
        assert broken.replace("\n", "") == text
        assert all(style.text_in(line.rstrip()) <= 1.0 or " " not in line.strip() for line in broken.split("\n"))


@pytest.mark.parametrize("words", [["report", "x"], ["explain", "x"], ["predict", "--simulate"]])
def test_the_verbs_that_draw_take_width_and_font(words):
    options = cli.command_line().parse_args([*words, "--width", "column", "--font", "serif"])

    assert cli.verbs.figure_look(options) == style.FigureFormat.of("column", "serif")
