"""The same curves in every layout give the same data set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import curve_files as files
from make.wording import Golden

from horovod_study.cli import main
from horovod_study.errors import DataError
from horovod_study.workload import dataset, material
from horovod_study.workload.curves import CurveSet, ReadOptions, read_curves, to_channels
from horovod_study.workload.curves.importing import import_curves, lines

TESTS = files.generated()
ARRAYS = {"strain_unit": "1", "stress_unit": "MPa"}
Write = Callable[[Path], Path]

LAYOUTS: dict[str, tuple[Write, dict[str, str], str]] = {
    "long": (lambda p: files.write_long(p / "c.csv", TESTS), {}, "long"),
    "long german": (
        lambda p: files.write_long(
            p / "c.csv", TESTS, header="Probe,Gleitung (1),Schubspannung (N/mm2),G0,a", delimiter=";", decimal=",",
            newline="\r\n", bom=True, quoted=True, end="\r\n;;;;\r\n\r\n",
        ),
        {},
        "long",
    ),
    "long tabs": (
        lambda p: files.write_long(p / "c.tsv", TESTS, header="TEST_ID,EPS,SIGMA_MPA,G0,A", delimiter="\t"),
        {"strain_unit": "mm/mm"},
        "long",
    ),
    "folder": (lambda p: files.write_folder(p / "c", TESTS), {}, "folder"),
    "wide": (lambda p: files.write_wide(p / "c.csv", TESTS), {}, "wide"),
    "machine": (lambda p: files.write_machine(p / "c", TESTS), {}, "folder"),
    "machine german": (lambda p: files.write_machine(p / "c", TESTS, german=True), {}, "folder"),
    "npz flag": (lambda p: files.write_npz(p / "c.npz", TESTS, kind="flag"), ARRAYS, "npz"),
    "npz length": (lambda p: files.write_npz(p / "c.npz", TESTS, kind="length"), ARRAYS, "npz"),
    "npz ragged": (lambda p: files.write_npz(p / "c.npz", TESTS, kind="ragged"), ARRAYS, "npz"),
    "npy pair": (lambda p: files.write_pair(p / "c", TESTS), ARRAYS, "npy"),
    "npy pair float32": (lambda p: files.write_pair(p / "c", TESTS, dtype="f4"), ARRAYS, "npy"),
    "npy pair big-endian": (lambda p: files.write_pair(p / "c", TESTS, dtype=">f8"), ARRAYS, "npy"),
    "npy pair columns first": (lambda p: files.write_pair(p / "c", TESTS, order="F"), ARRAYS, "npy"),
    "split npz": (lambda p: files.write_split(p / "stress_norm_y.npz", TESTS), ARRAYS, "npz"),
    "parquet long": (lambda p: files.write_parquet(p / "c.parquet", TESTS, lists=False), ARRAYS, "parquet"),
    "parquet lists": (lambda p: files.write_parquet(p / "c.parquet", TESTS, lists=True), ARRAYS, "parquet"),
}  # fmt: skip
NO_TARGETS = ("wide", "machine", "machine german")
ROUNDED = ("machine", "machine german")
"""Machine exports round to a few digits; all other layouts keep every bit."""


def options(given: dict[str, str], folder: Path, layout: str) -> ReadOptions:
    targets = files.write_targets(folder / "parameters.csv", TESTS) if layout in NO_TARGETS else None
    return ReadOptions(**given, targets=targets)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_data_set(name: str, tmp_path: Path) -> None:
    write, given, layout = LAYOUTS[name]
    source = write(tmp_path)
    provenance = import_curves(
        source, tmp_path / "out", options(given, tmp_path, name), target_bounds=material.TARGET_BOUNDS
    )
    opened = dataset.open_dataset(tmp_path / "out")
    expected = (TESTS.targets - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN

    assert provenance["layout"] == layout
    assert opened.sidecar["provenance"] == provenance
    if name in ROUNDED:
        assert opened.curves[:, 0] == pytest.approx(TESTS.channels[:, 0], abs=1e-8)
        assert opened.curves[:, 1] == pytest.approx(TESTS.channels[:, 1], abs=1e-5)
        assert np.array_equal(opened.curves[:, 2], TESTS.channels[:, 2])
    else:
        assert np.array_equal(opened.curves, TESTS.channels)
    assert opened.targets == pytest.approx(expected, abs=2e-7)
    assert dataset.check(tmp_path / "out")["size"] == 8


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "split npz" and "pair" not in name])
def test_read_curves_gives_every_point(name: str, tmp_path: Path) -> None:
    write, given, layout = LAYOUTS[name]
    curves = read_curves(write(tmp_path), options(given, tmp_path, name))

    assert curves.layout == layout
    assert curves.targets == pytest.approx(TESTS.targets, rel=1e-6)
    assert list(curves.ids) == TESTS.names
    for k in range(8):
        assert len(curves.strain[k]) == len(TESTS.strain[k])
        assert curves.strain[k] == pytest.approx(TESTS.strain[k], abs=1e-8)
        assert curves.stress[k] == pytest.approx(TESTS.stress[k], abs=1e-5)


def test_a_layout_can_be_named(tmp_path: Path) -> None:
    source = files.write_long(tmp_path / "c.data", TESTS)

    assert read_curves(source, ReadOptions(layout="long")).ids == tuple(TESTS.names)
    assert read_curves(source, ReadOptions(layout="machine")).layout == "machine"


def test_the_tests_of_a_split_data_set_stay_tests(tmp_path: Path, golden: Golden) -> None:
    """With a quarter of test curves the original's split is kept, whatever the blocks."""
    many = files.generated(40)
    source = files.write_split(tmp_path / "s.npz", many)
    provenance = import_curves(source, tmp_path / "out", ReadOptions(**ARRAYS), target_bounds=material.TARGET_BOUNDS)
    opened = dataset.open_dataset(tmp_path / "out")

    assert np.array_equal(opened.curves, many.channels)
    golden(tuple(provenance["warnings"]))
    with np.load(source) as archive:
        assert np.array_equal(opened.curves[3::4], archive["X_test"])


# -------------------------------------------------------------------------------------------- what an import records


def imported(folder: Path, source: Path, given: ReadOptions, **more: Any) -> dict[str, Any]:
    return import_curves(source, folder / "out", given, **more)


def test_provenance_names_files_units_options_and_counts(tmp_path: Path, golden: Golden) -> None:
    import hashlib

    source = files.write_long(tmp_path / "c.csv", TESTS)
    said = imported(tmp_path, source, ReadOptions(reduce="mean"))

    assert said["files"] == [
        {
            "name": "c.csv",
            "bytes": source.stat().st_size,
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        }
    ]
    assert said["units"] == {"strain": "1", "stress": "MPa"}
    assert said["options"] == {"reduce": "mean"}
    points = sum(map(len, TESTS.strain))
    assert said["counts"] == {"curves": 8, "points": points, "files": 1, "rows": points}
    assert said["ids"] == TESTS.names
    assert said["targets"]["from"] == "given"
    assert said["self_check"]["curves"] == said["self_check"]["of"] == 8
    assert said["self_check"]["median_g0_mpa"] == pytest.approx(np.median(TESTS.targets[:, 0]), rel=0.05)
    json.dumps(said, allow_nan=False)
    text = "\n".join(lines(said))
    golden(text, "8 curves", "MPa", "6 curves")


def test_bounds_are_those_of_the_training_curves(tmp_path: Path, golden: Golden) -> None:
    said = imported(tmp_path, files.write_long(tmp_path / "c.csv", TESTS), ReadOptions())
    training = TESTS.targets[[0, 1, 2, 4, 5, 6]]
    opened = dataset.open_dataset(tmp_path / "out")

    golden(said["targets"]["bounds_from"])
    assert opened.target_bounds.tolist() == [[c.min(), c.max()] for c in training.T] == said["targets"]["bounds"]
    assert opened.targets[[0, 1, 2, 4, 5, 6]].min(axis=0).tolist() == [0, 0]


def test_bounds_in_the_file_are_used(tmp_path: Path) -> None:
    source = files.write_npz(tmp_path / "c.npz", TESTS)
    with np.load(source) as archive:
        arrays = dict(archive)
    np.savez(source, **arrays, target_bounds=[[500.0, 4000.0], [20.0, 50.0]])
    said = imported(tmp_path, source, ReadOptions(**ARRAYS))

    assert said["targets"]["bounds"] == [[500, 4000], [20, 50]]
    assert said["targets"]["bounds_from"] == "the file"


def test_labels_by_least_squares(tmp_path: Path) -> None:
    clean = files.generated(noise_max_mpa=0.0)
    for name, source, given in (
        ("wide", files.write_wide(tmp_path / "w.csv", clean), ReadOptions()),
        ("pair", files.write_pair(tmp_path / "p", clean), ReadOptions(**ARRAYS)),
    ):
        if name == "pair":
            (source / "parameter.train").unlink()
        said = import_curves(source, tmp_path / name, given, label="lsq", target_bounds=material.TARGET_BOUNDS)
        opened = dataset.open_dataset(tmp_path / name)

        assert said["targets"]["from"] == "least squares"
        assert said["options"]["label"] == "lsq"
        physical = opened.target_bounds[:, 0] + opened.targets * opened.target_span
        assert physical == pytest.approx(clean.targets, abs=1e-3)
        assert opened.floor is None, "labels that are fits themselves have no floor of this kind"


def test_the_floor_is_estimated_from_the_residuals(tmp_path: Path) -> None:
    many = files.generated(400, noise_max_mpa=1.0)
    imported(
        tmp_path, files.write_pair(tmp_path / "p", many), ReadOptions(**ARRAYS), target_bounds=material.TARGET_BOUNDS
    )
    generated = tmp_path / "generated"
    dataset.generate(generated, 400, seed=5)
    estimated, known = dataset.open_dataset(tmp_path / "out").floor, dataset.open_dataset(generated).floor

    assert estimated is not None and known is not None
    assert estimated["estimated"] is True
    assert estimated["mse"] == pytest.approx(known["mse"], rel=0.1)


def test_large_pairs_go_in_blocks_and_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod_study.workload.curves import blocks, importing

    many = files.generated(50)
    monkeypatch.setattr(blocks, "BLOCK_CURVES", 7)
    monkeypatch.setattr(importing, "SELF_CHECKED", 10)
    largest = []
    plain = blocks.CurveBlocks.read
    monkeypatch.setattr(
        blocks.CurveBlocks, "read", lambda self, low, high: largest.append(high - low) or plain(self, low, high)
    )
    told = []
    said = imported(
        tmp_path, files.write_pair(tmp_path / "p", many), ReadOptions(**ARRAYS),
        on_progress=lambda what, done, total: told.append((what, done, total)),
    )  # fmt: skip

    assert np.array_equal(dataset.open_dataset(tmp_path / "out").curves, many.channels)
    assert max(largest) == 7
    assert (said["self_check"]["curves"], said["self_check"]["of"]) == (10, 50)
    assert ("checking curves", 50, 50) in told and ("writing", 50, 50) in told


def test_repairs_in_blocks_are_written(tmp_path: Path) -> None:
    """A repaired curve is shorter, is at the right, and is counted; the others are untouched."""
    channels = TESTS.channels.copy()
    channels[2, 0, 150] = channels[2, 0, 149]
    channels[5, 1, 120] = np.nan
    broken = files.Tests(
        names=TESTS.names, strain=TESTS.strain, stress=TESTS.stress, targets=TESTS.targets, channels=channels
    )
    given = ReadOptions(**ARRAYS, on_nonmonotonic="drop", drop_nonfinite=True)
    said = imported(tmp_path, files.write_pair(tmp_path / "p", broken), given)
    written = dataset.open_dataset(tmp_path / "out").curves
    others = [0, 1, 3, 4, 6, 7]

    assert said["counts"]["points dropped, strain not increasing"] == 1
    assert said["counts"]["points dropped, not finite"] == 1
    assert np.array_equal(written[others], channels[others])
    for row, point in ((2, 150), (5, 120)):
        expected = np.zeros((3, 201), np.float32)
        expected[:, 1:] = np.delete(channels[row], point, axis=1)
        assert np.array_equal(written[row], expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_quick_look_at_blocks_overlooks_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are screened as a whole; looking at every curve singly must give the same rows, counts and notes."""
    from horovod_study.workload.curves import blocks, checks

    generator = np.random.default_rng(seed)
    channels, _ = material.generate(seed, 0, 120)
    for row in channels:
        first, point = int(row[2].argmax()), int(generator.integers(60, 200))
        kind = generator.integers(0, 9)
        if kind == 0:
            row[0, point] = row[0, point - 1]
        elif kind == 1:
            row[1, point] = generator.choice([np.nan, np.inf])
        elif kind == 2:
            row[:2, first:] *= -1
        elif kind == 3:
            row[1, point:] *= generator.uniform(0.5, 1.0)
        elif kind == 4:
            row[1, first:] += generator.uniform(0, 6)
        elif kind == 5:
            row[0, first:] += generator.uniform(0, 0.02)
    given = ReadOptions(
        **ARRAYS, on_nonmonotonic="drop", drop_nonfinite=True, flip_sign=True, cut_at_peak=bool(seed % 2)
    )
    results = []
    for everything in (False, True):
        if everything:
            monkeypatch.setattr(blocks, "_suspects", lambda block, numbers: np.ones(len(block), bool))
        block, tally = channels.copy(), checks.Tally()
        blocks.check_block("x", 0, block, given, {"strain": "1", "stress": "MPa"}, tally)
        results.append((block, tally))
    (quick, quick_tally), (full, full_tally) = results

    assert np.array_equal(quick, full)
    assert not np.array_equal(quick, channels)
    assert quick_tally == full_tally
    assert quick_tally.warnings()


@pytest.mark.parametrize(("factor", "word"), [(0.05, "slope"), (20.0, "slope"), (0.0, "throughout")])
def test_the_quick_look_at_blocks_refuses_what_a_single_look_does(
    factor: float, word: str, tmp_path: Path, golden: Golden
) -> None:
    channels = TESTS.channels.copy()
    channels[5, 1] *= factor
    broken = files.Tests(
        names=TESTS.names, strain=TESTS.strain, stress=TESTS.stress, targets=TESTS.targets, channels=channels
    )
    source = files.write_pair(tmp_path / "p", broken)
    with golden.raises(DataError, match=f"{word}"):
        import_curves(source, tmp_path / "out", ReadOptions(**ARRAYS))
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------- 201 points


def one_curve(points: int) -> CurveSet:
    strain = np.linspace(0, 0.15, points)
    return CurveSet(ids=("A",), strain=(strain,), stress=(60 * -np.expm1(-30 * strain),), targets=None, source="made")


@pytest.mark.parametrize("points", [20, 200, 201, 202, 500, 2500])
def test_pick_keeps_real_points(points: int) -> None:
    curves = one_curve(points)
    channels = to_channels(curves)
    count = min(points, 201)
    data = channels[0, :, 201 - count :]

    assert channels.shape == (1, 3, 201) and channels.dtype == np.float32
    assert (channels[0, :, : 201 - count] == 0).all()
    assert (data[2] == 1).all()
    assert np.isin(data[0], curves.strain[0].astype(np.float32)).all()
    assert (np.diff(data[0]) > 0).all()
    assert data[0, 0] == 0 and data[0, -1] == np.float32(curves.strain[0][-1])


def test_mean_makes_noise_smaller() -> None:
    generator = np.random.default_rng(1)
    curves = one_curve(2010)
    noise = generator.normal(0, 1, 2010)
    noisy = CurveSet(
        ids=curves.ids, strain=curves.strain, stress=(curves.stress[0] + noise,), targets=None, source="made"
    )
    picked, averaged = to_channels(noisy)[0], to_channels(noisy, reduce="mean")[0]

    def spread(row: np.ndarray) -> float:
        return float(np.std(row[1] - 60 * -np.expm1(-30 * row[0])))

    assert spread(picked) == pytest.approx(1.0, rel=0.2)
    assert spread(averaged) == pytest.approx(1 / np.sqrt(10), rel=0.2)
    assert (np.diff(averaged[0]) > 0).all() and (averaged[2] == 1).all()


# -------------------------------------------------------------------------------------------------- the command line


def test_import_check_and_train(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    from horovod_study import train

    source = files.write_long(tmp_path / "c.csv", files.generated(40), header="specimen,strain,stress,G0,a")
    out = tmp_path / "out"
    code = main(
        ["strain", "data", "import", str(source), "--out", str(out), "--strain-unit", "1", "--stress-unit", "MPa"]
    )
    said = capsys.readouterr().out

    assert code == 0
    assert "median G0" in said
    golden.line(said, "30 curves", "10")
    golden.line(said, "-m horovod_study.train --dataset", out)
    assert main(["strain", "data", "check", str(out)]) == 0
    assert "good" in capsys.readouterr().out
    words = ["--dataset", str(out), "--batch", "5", "--steps", "3", "--warmup-steps", "0", "--out", str(tmp_path / "r")]
    assert train.main(words) == 0


def test_import_as_json_and_its_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = files.write_long(tmp_path / "c.csv", TESTS)
    words = ["strain", "data", "import", str(source), "--out", str(tmp_path / "out")]
    assert main([*words, "--json", "--target-bounds", "1000", "3000", "25", "45"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(tmp_path / "out") and said["counts"]["curves"] == 8

    for more, text in (
        ([], "exists already; choose another --out, or remove it first"),
        (["--layout", "wid"], "--layout 'wid' is not known (did you mean 'wide'?)"),
        (["--strain-unit", "mpa"], "--strain-unit 'mpa' is no unit of strain"),
        (["--on-nonmonotonic", "fix"], "allowed: error, drop, sort"),
        (["--delimiter", "x"], "--delimiter 'x': allowed are"),
        (["--decimal", "x"], "--decimal 'x' is not known; allowed: ., ,"),
    ):
        assert main([*words, *more]) == 2
        err = capsys.readouterr().err
        assert text in err and err.count("\n") == 1
    for more, text in (
        (["--label", "guess"], "--label 'guess' is not known; allowed: lsq"),
        (["--target-bounds", "3000", "1000", "25", "45"], "--target-bounds 3000 1000 25 45: must be low and high"),
    ):
        assert main([*words[:-1], str(tmp_path / "other"), *more]) == 2
        assert text in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
