"""Identified parameters: known answers of a stand-in network, fits, doubts, the table, the files and the whole verb."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make.wording import Golden
from numpy.typing import NDArray

from horovod_study import cli
from horovod_study.errors import ConfigError, DataError, RecordError
from horovod_study.report.figures import identified
from horovod_study.workload import identify, material
from horovod_study.workload.checkpoint import Checkpoint, encode, load, save
from horovod_study.workload.curves import CurveSet
from horovod_study.workload.least_squares import LawFit
from horovod_study.workload.model import StressCNN

BOUNDS = np.array([material.G0_MPA, material.A])


def curve_set(count: int, *, noise_max_mpa: float = 1.0, seed: int = 5, given: bool = False) -> CurveSet:
    """`count` generated curves without their padding, as read from a file."""
    curves, targets = material.generate(seed, 0, count, noise_max_mpa=noise_max_mpa)
    real = curves[:, 2] > 0
    return CurveSet(
        ids=tuple(f"S{k}" for k in range(count)),
        strain=tuple(curves[k, 0, real[k]].astype(np.float64) for k in range(count)),
        stress=tuple(curves[k, 1, real[k]].astype(np.float64) for k in range(count)),
        targets=BOUNDS[:, 0] + targets * np.diff(BOUNDS)[:, 0] if given else None,
        source="curves.csv",
    )


def one_curve(g0_mpa: float, a: float, *, last: float = 0.2, points: int = 201, noise_mpa: float = 0.3) -> CurveSet:
    """One curve of the law on evenly spaced strains, with the origin exact."""
    strain = np.linspace(0.0, last, points)
    stress = material.stress_mpa(np.float64(g0_mpa), np.float64(a), strain)
    stress[1:] += np.random.default_rng(3).normal(0.0, noise_mpa, points - 1)
    return CurveSet(ids=("P1",), strain=(strain,), stress=(stress,), targets=None, source="curves.csv")


def answering(*pairs: tuple[float, float]) -> identify.Predict:
    """A network that answers the pairs (G0 in MPa, a) in order, whatever it sees."""
    normalised = (np.array(pairs) - BOUNDS[:, 0]) / np.diff(BOUNDS)[:, 0]
    seen = 0

    def predict(curves: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += len(curves)
        return torch.from_numpy(normalised[seen - len(curves) : seen])

    return predict


def kinds(one: identify.Identified) -> list[str]:
    return [doubt.kind for doubt in one.doubts]


# ----------------------------------------------------------------------------------------------------- known answers


def test_the_networks_answer_comes_back_in_physical_units() -> None:
    found = identify.identify(curve_set(2), answering((1500.0, 30.0), (2500.0, 40.0)), BOUNDS)

    assert [(one.name, one.network.g0_mpa, one.network.a) for one in found] == [
        ("S0", 1500.0, 30.0),
        ("S1", 2500.0, 40.0),
    ]


def test_the_network_sees_padded_curves_in_physical_units() -> None:
    seen: list[torch.Tensor] = []

    def predict(curves: torch.Tensor) -> torch.Tensor:
        seen.append(curves)
        return torch.zeros(len(curves), 2)

    curves, _ = material.generate(5, 0, 7)
    identify.identify(curve_set(7), predict, BOUNDS)

    assert len(seen) == 1
    assert torch.equal(seen[0], torch.from_numpy(curves))


def test_many_curves_go_through_in_batches_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = curve_set(7)
    pairs = [(1000.0 + 100 * k, 26.0 + k) for k in range(7)]
    whole = identify.identify(curves, answering(*pairs), BOUNDS)
    monkeypatch.setattr(identify, "BATCH", 3)

    found = identify.identify(curves, answering(*pairs), BOUNDS)

    assert [one.name for one in found] == [f"S{k}" for k in range(7)]
    assert [one.network for one in found] == [one.network for one in whole]
    np.testing.assert_allclose([one.fit.g0_mpa for one in found], [one.fit.g0_mpa for one in whole], rtol=1e-9)


def test_the_fit_recovers_the_truth_of_clean_curves() -> None:
    curves = curve_set(50, noise_max_mpa=0.0, given=True)
    assert curves.targets is not None

    found = identify.identify(curves, answering(*curves.targets), BOUNDS)

    fitted = np.array([(one.fit.g0_mpa, one.fit.a) for one in found])
    np.testing.assert_allclose(fitted, curves.targets, rtol=2e-5)
    assert max(one.fit.rms_mpa for one in found) < 1e-4
    assert [one.given for one in found] == [tuple(pair) for pair in curves.targets.tolist()]
    assert [one.doubts for one in found] == [()] * 50


def test_the_rms_is_that_of_the_law_with_each_pair_of_parameters() -> None:
    curves = one_curve(2000.0, 30.0, noise_mpa=0.0)
    strain, stress = curves.strain[0], curves.stress[0]

    one = identify.identify(curves, answering((2100.0, 33.0)), BOUNDS)[0]

    other = 2100.0 / 33.0 * (1 - np.exp(-33.0 * strain))
    assert one.network.rms_mpa == pytest.approx(np.sqrt(np.mean((stress - other) ** 2)))
    np.testing.assert_allclose(one.residual_mpa("network"), stress - other)
    grid, law = one.line("network", 5)
    np.testing.assert_allclose(grid, [0, 0.05, 0.1, 0.15, 0.2])
    np.testing.assert_allclose(law, 2100.0 / 33.0 * (1 - np.exp(-33.0 * grid)))


def test_the_standard_errors_are_as_large_as_the_scatter_of_the_fit() -> None:
    curves = curve_set(400, given=True)
    assert curves.targets is not None

    found = identify.identify(curves, answering(*curves.targets), BOUNDS)

    errors = np.array([(one.fit.g0_mpa, one.fit.a) for one in found]) - curves.targets
    stated = np.array([(one.g0_se_mpa, one.a_se) for one in found], dtype=float)
    assert np.sqrt(np.mean((errors / stated) ** 2, axis=0)) == pytest.approx([1.0, 1.0], abs=0.1)


def test_the_standard_error_of_one_curve_is_the_textbooks() -> None:
    curves = one_curve(2000.0, 30.0)
    one = identify.identify(curves, answering((2000.0, 30.0)), BOUNDS)[0]
    strain = curves.strain[0][1:]

    def law(pair: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(pair[0] / pair[1] * (1 - np.exp(-pair[1] * strain)))

    best = np.array([one.fit.g0_mpa, one.fit.a])
    slopes = [(law(best + step) - law(best - step)) / (2 * step.sum()) for step in np.diag([1e-2, 1e-4])]
    noise = np.sum((curves.stress[0][1:] - law(best)) ** 2) / (200 - 2)
    expected = np.sqrt(np.diag(np.linalg.inv(np.array(slopes) @ np.array(slopes).T) * noise))
    assert (one.g0_se_mpa, one.a_se) == pytest.approx(tuple(expected), rel=1e-4)


def test_errors_are_those_against_the_parameters_in_the_file() -> None:
    curves = curve_set(4, noise_max_mpa=0.0, given=True)
    assert curves.targets is not None
    off = curves.targets + np.array([30.0, -0.4])

    found = identify.errors(identify.identify(curves, answering(*off), BOUNDS))

    assert found is not None
    assert found["network"] == pytest.approx({"g0_rmse_mpa": 30.0, "a_rmse": 0.4})
    assert found["fit"] == pytest.approx({"g0_rmse_mpa": 0.0, "a_rmse": 0.0}, abs=0.05)
    assert identify.errors(identify.identify(curve_set(2), answering((1500.0, 30.0), (1500.0, 30.0)), BOUNDS)) is None


# ------------------------------------------------------------------------------------------------------------- doubts


def test_a_good_curve_has_no_doubts() -> None:
    assert kinds(identify.identify(one_curve(2000.0, 35.0), answering((2001.0, 35.0)), BOUNDS)[0]) == []


def test_a_curve_like_printed_nylon_is_an_extrapolation(golden: Golden) -> None:
    curves = one_curve(1200.0, 17.0, last=0.12, points=201)

    one = identify.identify(curves, answering((1210.0, 24.9)), BOUNDS)[0]

    assert kinds(one) == ["extrapolates", "disagree"]
    golden(one.doubts[0].text, f"{one.fit.a:.2f}", "25..45")
    assert "standard errors)" in one.doubts[1].text


def test_both_ways_and_both_parameters_outside_are_named(golden: Golden) -> None:
    one = identify.identify(one_curve(3500.0, 50.0, noise_mpa=0.0), answering((3400.0, 47.0)), BOUNDS)[0]

    golden(one.doubts[0].text, "G0", "3400 MPa", "3500 MPa", "1000..3000 MPa", "47.00", "50.00", "25..45")


def test_an_estimate_may_leave_the_box_by_its_own_uncertainty() -> None:
    curves = one_curve(1000.0, 45.0, noise_mpa=2.0)

    one = identify.identify(curves, answering((1000.0, 45.0)), BOUNDS)[0]

    assert one.fit.g0_mpa > 3000.0 or one.fit.g0_mpa < 1000.0 or one.fit.a > 45.0
    assert "extrapolates" not in kinds(one)


def test_a_network_a_little_off_does_not_make_an_extrapolation(golden: Golden) -> None:
    curves = one_curve(2950.0, 35.0)

    near = identify.identify(curves, answering((3060.0, 35.0)), BOUNDS)[0]
    far = identify.identify(curves, answering((3140.0, 35.0)), BOUNDS)[0]

    assert kinds(near) == ["disagree"]
    assert kinds(far) == ["extrapolates", "disagree"]
    golden(far.doubts[0].text, "G0", "3140 MPa", "1000..3000 MPa")


def test_bounds_of_another_training_set_are_the_ones_compared_with() -> None:
    bounds = np.array([[500.0, 1500.0], [10.0, 20.0]])

    def predict(curves: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.7, 0.7]])

    one = identify.identify(one_curve(1200.0, 17.0, last=0.5), predict, bounds)[0]

    assert (one.network.g0_mpa, one.network.a) == pytest.approx((1200.0, 17.0))
    assert kinds(one) == []  # the strains of that set are not known, so 0.5 is not called unseen


@pytest.mark.parametrize(
    ("last", "points", "text"),
    [
        (0.05, 201, "0.1..0.25"),
        (0.40, 201, "0.1..0.25"),
        (0.20, 60, "60 points"),
    ],
)
def test_a_curve_unlike_the_training_curves_is_named(last: float, points: int, text: str, golden: Golden) -> None:
    one = identify.identify(one_curve(2000.0, 35.0, last=last, points=points), answering((2000.0, 35.0)), BOUNDS)[0]

    golden([(doubt.kind, doubt.text) for doubt in one.doubts if doubt.kind == "range"], "range", text)


def test_a_long_curve_is_reduced_for_the_network_and_fitted_whole() -> None:
    short, long = one_curve(2000.0, 35.0, points=201), one_curve(2000.0, 35.0, points=3201)

    few = identify.identify(short, answering((2000.0, 35.0)), BOUNDS)[0]
    many = identify.identify(long, answering((2000.0, 35.0)), BOUNDS)[0]

    assert "range" not in kinds(many)
    assert few.g0_se_mpa is not None and many.g0_se_mpa is not None
    assert few.g0_se_mpa / many.g0_se_mpa == pytest.approx(4.0, rel=0.15)


def test_a_curve_that_is_not_of_the_law_is_named(golden: Golden) -> None:
    strain = np.linspace(0.0, 0.2, 201)
    curves = CurveSet(
        ids=("T1",), strain=(strain,), stress=(40 * np.sin(12 * strain),), targets=None, source="curves.csv"
    )

    one = identify.identify(curves, answering((1500.0, 30.0)), BOUNDS)[0]

    assert {"misfit", "pattern"} <= set(kinds(one))
    text = {doubt.kind: doubt.text for doubt in one.doubts}
    golden(text["misfit"], "40 MPa")
    assert "neighbours correlate by 0.9" in text["pattern"]


def test_network_and_fit_that_disagree_are_named_from_the_limit_on(golden: Golden) -> None:
    curves = one_curve(2000.0, 35.0)
    plain = identify.identify(curves, answering((2000.0, 35.0)), BOUNDS)[0]
    assert plain.a_se is not None
    off = (plain.fit.g0_mpa, plain.fit.a + 5 * plain.a_se)

    near = identify.identify(curves, answering(off), BOUNDS, disagree_se=6.0)[0]
    far = identify.identify(curves, answering(off), BOUNDS, disagree_se=4.0)[0]

    assert kinds(near) == []
    golden([doubt.text for doubt in far.doubts], f"{5 * plain.a_se:.2f}", "5.0 standard")


@pytest.mark.parametrize("shape", ["straight", "plateau", "convex"])
def test_a_curve_that_does_not_determine_the_law_is_no_bug(shape: str) -> None:
    strain = np.linspace(0.0, 0.2, 50)
    stress = {"straight": 1000 * strain, "plateau": 40.0 * (strain > 0), "convex": 1e-6 * np.expm1(90 * strain)}[shape]
    curves = CurveSet(ids=("E1",), strain=(strain,), stress=(stress,), targets=None, source="curves.csv")

    one = identify.identify(curves, answering((1500.0, 30.0)), BOUNDS)[0]

    assert "extrapolates" in kinds(one)
    assert one.fit.rms_mpa < 1e-5 * stress.max()
    if shape == "straight":
        assert one.fit.g0_mpa == pytest.approx(1000.0)
        assert (one.g0_se_mpa, one.a_se) == (None, None)
    json.dumps(one.to_dict(), allow_nan=False)
    identified.table([one.row()])


def test_a_slope_of_exactly_zero_bend_is_a_straight_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def straight(strain: NDArray[np.float64], stress: object, weight: object) -> LawFit:
        return LawFit(g0_mpa=np.array([1000.0]), a=np.array([0.0]), rms_mpa=np.array([0.0]))

    monkeypatch.setattr(identify, "fit_law", straight)
    strain = np.linspace(0.0, 0.2, 50)
    curves = CurveSet(ids=("E1",), strain=(strain,), stress=(1000 * strain,), targets=None, source="curves.csv")

    one = identify.identify(curves, answering((1500.0, 30.0)), BOUNDS)[0]

    np.testing.assert_allclose(one.line("fit")[1], 1000 * one.line("fit")[0], rtol=1e-6)
    assert (one.g0_se_mpa, one.a_se) == (None, None)


def test_a_network_that_answers_nonsense_is_an_error(golden: Golden) -> None:
    with pytest.raises(DataError) as raised:
        identify.identify(curve_set(2), lambda curves: torch.full((len(curves), 2), torch.nan), BOUNDS)

    golden(str(raised.value), "curves.csv", "S0", "2 curves", "--lr")


# -------------------------------------------------------------------------------------------------- table, CSV, figure


def found_rows() -> list[identify.Identified]:
    curves = curve_set(3, given=True)
    assert curves.targets is not None
    pairs = [tuple(pair) for pair in curves.targets.tolist()]
    return identify.identify(curves, answering(*pairs[:2], (2500.0, 44.0)), BOUNDS)


def test_the_table_is_aligned_marks_doubts_and_fits_a_terminal() -> None:
    found = found_rows()

    lines = identified.table([one.row() for one in found]).splitlines()

    assert lines[0].split() == "G0 / MPa G0 / MPa a a rms / MPa rms / MPa".split()
    assert lines[1].split() == [
        *("specimen", "network", "fit", "±", "s.e.", "network", "fit", "±", "s.e."),
        *("network", "fit"),
    ]
    assert [line[:4] for line in lines[2:]] == ["  S0", "  S1", "! S2"]
    assert len({len(line) for line in lines[1:]}) == 1
    assert max(len(line) for line in lines) <= 80
    one = found[0]
    assert f"{one.network.g0_mpa:.1f}" in lines[2] and f"{one.fit.a:.2f} ± {one.a_se:.2f}" in lines[2]


def test_a_long_table_says_where_the_rest_is_and_a_long_name_is_shortened(golden: Golden) -> None:
    row = found_rows()[0].row()
    rows: list[dict[str, Any]] = [{**row, "specimen": f"a very long name of a specimen {k}\n"} for k in range(9)]

    lines = identified.table(rows, most=4).splitlines()

    assert lines[2].startswith("  a very long..specimen 0?  ")
    golden(lines[-1], "5 more", "--csv FILE", "--json")
    assert len(lines) == 2 + 4 + 1


def test_an_unknown_standard_error_is_said_to_be_unknown() -> None:
    row = {**found_rows()[0].row(), "fit_g0_se_mpa": None, "fit_a_se": None}

    assert identified.table([row]).count("± unknown") == 2


def test_doubts_shared_by_many_take_one_line(golden: Golden) -> None:
    few = [("A", "misfit", "does not fit"), ("B", "range", "ends early")]
    many = [(f"S{k}", "misfit", f"text {k}") for k in range(7)]

    assert identified.doubt_lines(few, identify.HEADLINES, 9) == ["B: ends early", "A: does not fit"]
    golden(identified.doubt_lines(many, identify.HEADLINES, 9), "9 specimens", "S0", "S1", "S2", "S3")


def test_the_csv_holds_every_number_and_leaves_the_unknown_empty(tmp_path: Path) -> None:
    rows = [one.row() for one in found_rows()]
    rows[1] = {**rows[1], "fit_a_se": None}

    identified.write_csv(rows, tmp_path / "out.csv")

    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as stream:
        read = list(csv.DictReader(stream))
    assert [row["specimen"] for row in read] == ["S0", "S1", "S2"]
    assert float(read[0]["fit_g0_mpa"]) == pytest.approx(rows[0]["fit_g0_mpa"], rel=1e-7)
    assert read[1]["fit_a_se"] == ""
    assert read[2]["doubts"] == "disagree"


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_figure_has_the_format_of_its_name_and_the_same_bytes_each_time(
    tmp_path: Path, ending: str, magic: bytes
) -> None:
    found = found_rows()[:1]

    identified.write_plot(found, tmp_path / f"one.{ending}")
    identified.write_plot(found, tmp_path / f"two.{ending}")

    picture = (tmp_path / f"one.{ending}").read_bytes()
    assert picture.startswith(magic)
    assert picture == (tmp_path / f"two.{ending}").read_bytes()


def test_the_figure_shows_points_laws_and_residuals_of_each_specimen() -> None:
    from horovod_study.report.kit.style import style

    found = found_rows()
    with style():
        figure = identified.draw(found, 5.9)

    assert len(figure.axes) == 6
    above, below = figure.axes[0], figure.axes[2]
    assert above.get_title(loc="left") == "S0"
    points, fit, network = above.lines
    np.testing.assert_allclose(points.get_ydata(), found[0].stress_mpa)
    np.testing.assert_allclose(points.get_xdata(), 100 * found[0].strain)
    np.testing.assert_allclose(fit.get_ydata(), found[0].line("fit")[1])
    np.testing.assert_allclose(network.get_ydata(), found[0].line("network")[1])
    np.testing.assert_allclose(below.lines[0].get_ydata(), found[0].residual_mpa("fit"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("measured", "law, network's G0 and a", "law, fitted G0 and a"),
    ]


def test_a_figure_of_many_specimens_says_how_many_were_left_out(golden: Golden) -> None:
    from horovod_study.report.kit.style import style

    found = found_rows() * 6
    with style():
        figure = identified.draw(found, 5.9)

    assert len(figure.axes) == 2 * identified.MAX_PANELS
    golden(figure.get_supxlabel(), "12", "18 specimens")
    assert identified.left_out(12) == ""


def test_outputs_that_cannot_be_meant_are_refused_before_any_work(tmp_path: Path, golden: Golden) -> None:
    curves = tmp_path / "curves.csv"
    curves.write_text("x\n")

    with pytest.raises(ConfigError) as raised:
        identified.check_outputs(curves, csv_path=tmp_path / "." / "curves.csv", plot=None)
    golden(str(raised.value))
    with pytest.raises(ConfigError) as raised:
        identified.check_outputs(curves, csv_path=None, plot=Path("out.jpg"))
    golden(str(raised.value), "--plot out.jpg", "out.png")
    assert curves.read_text() == "x\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, golden: Golden) -> None:
    found = found_rows()[:1]

    with golden.raises(RecordError, match="--csv"):
        identified.write_csv([found[0].row()], tmp_path / "no" / "out.csv")
    with golden.raises(RecordError, match="--plot"):
        identified.write_plot(found, tmp_path / "no" / "out.png")


# ------------------------------------------------------------------------------------------------------ the whole verb


def write_long(path: Path, curves: CurveSet) -> Path:
    """Write curves as a long table with units in the header."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["specimen", "strain (%)", "stress (MPa)"])
        for name, strain, stress in zip(curves.ids, curves.strain, curves.stress, strict=True):
            writer.writerows([name, repr(float(100 * x)), repr(float(y))] for x, y in zip(strain, stress, strict=True))
    return path


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run directory with one checkpoint of an untrained network."""
    torch.manual_seed(0)
    model = StressCNN(widths=(4, 6, 20), input_scaling="fixed")
    run = tmp_path / "run"
    run.mkdir()
    checkpoint = Checkpoint(
        step=7,
        epoch=0,
        model=model.state_dict(),
        optimizer={},
        progress={},
        config={},
        target_bounds=(material.G0_MPA, material.A),
        input_scaling="fixed",
        widths="4-6-20",
    )
    save(run, checkpoint)
    return run


def test_the_verb_prints_a_table_and_writes_csv_and_figure(
    tmp_path: Path, run_directory: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    curves = write_long(tmp_path / "curves.csv", curve_set(3))
    out, plot = tmp_path / "out.csv", tmp_path / "out.svg"

    code = cli.main(
        ["strain", "identify", str(curves), "--model", str(run_directory), "--csv", str(out), "--plot", str(plot)]
    )

    printed = capsys.readouterr()
    assert code == 0
    assert [line.split()[0] for line in printed.out.splitlines()[1:5]] == ["specimen", "!", "!", "!"]
    golden(printed.err, "S0")
    assert len(out.read_text().splitlines()) == 4
    assert plot.stat().st_size > 0


def test_the_verb_gives_the_networks_own_answer_from_directory_and_file(
    tmp_path: Path, run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = write_long(tmp_path / "curves.csv", curve_set(2))
    generated, _ = material.generate(5, 0, 2)
    torch.manual_seed(0)
    model = StressCNN(widths=(4, 6, 20), input_scaling="fixed").eval()
    with torch.inference_mode():
        answers = BOUNDS[:, 0] + np.diff(BOUNDS)[:, 0] * model(torch.from_numpy(generated)).numpy()

    for source in (run_directory, next((run_directory / "checkpoints").glob("*.pt"))):
        code = cli.main(["strain", "identify", str(curves), "--model", str(source), "--json"])
        document = json.loads(capsys.readouterr().out)

        assert code == 0
        assert document["model"] == {
            "source": str(source),
            "trained_on": {
                "g0_mpa": [1000.0, 3000.0],
                "a": [25.0, 45.0],
                "last_strain": [0.1, 0.25],
                "points": [161, 201],
            },
        }
        assert document["curves"] == str(curves)
        found = [(one["network_g0_mpa"], one["network_a"]) for one in document["specimens"]]
        np.testing.assert_allclose(found, answers, rtol=1e-5)
        assert document["specimens"][0]["doubts"][0].keys() == {"kind", "text"}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("nowhere", ""),
        ("empty", ""),
        (
            "text.pt",
            "PyTorch",
        ),
        ("newer.pt", "schema 99"),
        ("pickled.pt", ""),
    ],
)
def test_a_model_that_is_none_is_one_line(
    tmp_path: Path, run_directory: Path, capsys: pytest.CaptureFixture[str], model: str, text: str, golden: Golden
) -> None:
    curves = write_long(tmp_path / "curves.csv", curve_set(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"schema": 1, "model": StressCNN()}, tmp_path / "pickled.pt")  # a whole module: code, not numbers
    checkpoint = load(next((run_directory / "checkpoints").glob("*.pt")))
    (tmp_path / "newer.pt").write_bytes(encode(replace(checkpoint, schema=99)))

    code = cli.main(["strain", "identify", str(curves), "--model", str(tmp_path / model)])

    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("error: ") and error.count("\n") == 1
    golden(error, text)


def test_curves_without_units_and_no_curves_are_one_line(
    tmp_path: Path, run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_text("specimen,strain,stress\n" + "".join(f"A,{k / 100},{k}\n" for k in range(30)))

    for path, text in ((bare, "--strain-unit"), (tmp_path / "none.csv", "none.csv")):
        code = cli.main(["strain", "identify", str(path), "--model", str(run_directory)])

        error = capsys.readouterr().err
        assert code == 2
        assert error.startswith("error: ") and error.count("\n") == 1
        assert text in error


@pytest.mark.slow
def test_a_network_trained_for_seconds_identifies_generated_curves_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train, write curves of other seeds as a user's file, identify, compare with the truth."""
    run = tmp_path / "run"
    options = ["--dataset", "4000", "--batch", "64", "--lr", "2e-3", "--steps", "300", "--input-scaling", "fixed"]
    assert cli.main(["strain", "train", *options, "--warmup-steps", "5", "--threads", "1", "--out", str(run)]) == 0
    test_mse = float(json.loads((run / "run.json").read_text())["totals"]["test_mse"])
    curves = curve_set(200, seed=99, given=True)
    assert curves.targets is not None
    source = write_long(tmp_path / "curves.csv", curves)
    capsys.readouterr()

    code = cli.main(["strain", "identify", str(source), "--model", str(run), "--json"])

    found = json.loads(capsys.readouterr().out)["specimens"]
    assert code == 0
    predicted = np.array([(one["network_g0_mpa"], one["network_a"]) for one in found])
    errors = (predicted - curves.targets) / np.diff(BOUNDS)[:, 0]
    assert np.mean(errors**2) == pytest.approx(test_mse, rel=0.5)  # as good on the file as on the test set
    assert np.mean(errors**2) < 2.4e-2  # better than a linear regression
    fitted = np.array([(one["fit_g0_mpa"], one["fit_a"]) for one in found])
    assert np.mean(((fitted - curves.targets) / np.diff(BOUNDS)[:, 0]) ** 2) < 2e-4
