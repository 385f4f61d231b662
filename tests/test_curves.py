"""A user's own curves: every form gives the same data set, and whatever is wrong is one line with place and remedy."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from make import curve_files as files
from make.wording import Golden

from horovod_study.cli import main
from horovod_study.errors import DataError
from horovod_study.strain import curves as reading
from horovod_study.strain import dataset, material, room
from horovod_study.strain.curves import UNITS, import_curves, lines, open_curves, to_channels

TESTS = files.generated()
PLAIN = {"strain": "1", "stress": "MPa"}


def one(points: int = 50, *, end: float = 0.15, g0: float = 2000.0, a: float = 30.0) -> tuple[np.ndarray, np.ndarray]:
    strain = np.linspace(0, end, points)
    return strain, g0 / a * -np.expm1(-a * strain)


def table(*pairs: tuple[np.ndarray, np.ndarray], **more: Any) -> pd.DataFrame:
    parts = [pd.DataFrame({"specimen": f"S{k}", "strain": x, "stress": y}) for k, (x, y) in enumerate(pairs)]
    return pd.concat(parts, ignore_index=True).assign(**more)


def csv(folder: Path, *pairs: tuple[np.ndarray, np.ndarray], **more: object) -> Path:
    table(*pairs, **more).to_csv(folder / "c.csv", index=False)
    return folder / "c.csv"


def text(folder: Path, content: str | bytes, name: str = "c.csv") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def channels(path: Path, *, any_modulus: bool = False, **how: Any) -> np.ndarray:
    blocks = open_curves(path, **{"units": PLAIN, **how}).blocks(any_modulus=any_modulus)
    return np.concatenate([to_channels(points) for _, points in blocks])


def refused(path: Path, *parts: str, **how: Any) -> str:
    """Read, and return the message, which is one line that holds `parts`."""
    with pytest.raises(DataError) as caught:
        channels(path, **how)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    for part in parts:
        assert re.search(part, message), f"{part!r} is not in {message!r}"
    return message


# ------------------------------------------------------------------------------------------------------------- forms


def german(path: Path) -> Path:
    """Semicolons, a byte-order mark, blank lines and quotes, as spreadsheets write them; decimal points."""
    frame = files.long(TESTS).set_axis(["Probe", "Gleitung [-]", "Schubspannung_N/mm2", "G0", "a"], axis=1)
    path.write_bytes((frame.to_csv(index=False, sep=";", quoting=2) + ";;;;\r\n\r\n").encode("utf-8-sig"))
    return path


def parquet(path: Path) -> Path:
    files.long(TESTS).to_parquet(path)
    return path


FORMS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "long": (lambda p: files.write_long(p / "c.csv", TESTS), "long"),
    "german": (lambda p: german(p / "c.txt"), "long"),
    "parquet": (lambda p: parquet(p / "c.parquet"), "long"),
    "wide": (lambda p: files.write_wide(p / "c.csv", TESTS), "wide"),
    "pair": (lambda p: files.write_pair(p / "c", TESTS), "npy"),
    "pair big-endian": (lambda p: files.write_pair(p / "c", TESTS, dtype=">f4", order="F"), "npy"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_data_set(name: str, tmp_path: Path) -> None:
    write, layout = FORMS[name]
    labels = files.write_targets(tmp_path / "labels.csv", TESTS) if name == "wide" else None
    units = PLAIN if layout == "npy" else None
    curves = open_curves(write(tmp_path), units=units, targets=labels)
    provenance = import_curves(curves, tmp_path / "out", target_bounds=material.TARGET_BOUNDS)
    opened = dataset.open_dataset(tmp_path / "out")
    expected = (TESTS.targets - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN

    assert provenance["layout"] == layout and opened.sidecar.provenance == provenance
    assert provenance["units"] == PLAIN
    assert np.array_equal(opened.curves, TESTS.channels)
    assert opened.targets == pytest.approx(expected, abs=2e-7)
    assert dataset.check(tmp_path / "out")["size"] == 8


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("Stress_MPa", ("Stress", "MPa")), ("Shear Strain (%)", ("Shear Strain", "%")), ("e_true", ("e true", None)),
        ("strain_1", ("strain 1", None)), ("s1_strain [1]", ("s1 strain", "1")), ("tau", ("tau", None)),
        ("Spannung / MPa", ("Spannung", "MPa")), ("Dehnung in %", ("Dehnung", "%")), ("stress ()", ("stress", None)),
        ("strain_mm_mm", ("strain", "mm/mm")), ("strain, %", ("strain", "%")),
    ],
)  # fmt: skip
def test_names_and_units_are_told_apart(column: str, expected: tuple[str, str | None]) -> None:
    assert reading._split(column) == expected


@pytest.mark.parametrize(("kind", "unit"), [(kind, unit) for kind, known in UNITS.items() for unit in known])
def test_every_unit(tmp_path: Path, kind: str, unit: str) -> None:
    (strain, stress), factor = one(), UNITS[kind][unit]
    path = csv(tmp_path, (strain / factor, stress) if kind == "strain" else (strain, stress / factor))
    found = channels(path, units={**PLAIN, kind: unit})

    assert found == pytest.approx(channels(csv(tmp_path, (strain, stress))), rel=1e-6)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|", " "])
def test_columns_by_option_and_marks_between_them(tmp_path: Path, mark: str) -> None:
    frame = table(one()).assign(true_stress=1).rename(columns={"strain": "Eps_x", "stress": "tau"})
    frame.to_csv(tmp_path / "c.csv", sep=mark, index=False)
    curves = open_curves(tmp_path / "c.csv", units=PLAIN, columns={"strain": "Eps_x"})

    assert curves.columns == {"strain": "Eps_x", "stress": "tau", "specimen": "specimen"}
    assert curves.unused == ("true_stress",)
    refused(tmp_path / "c.csv", "no column 'strain'; .*columns found: 'specimen', 'Eps_x'", "--columns strain=NAME")
    refused(tmp_path / "c.csv", r"no column 'Epsx' \(did you mean 'Eps_x'\?\)", columns={"strain": "Epsx"})


@pytest.mark.parametrize(
    "content",
    [
        "strain   stress\n0        1\n0.1    200\n",
        "specimen;strain;stress;note\nA;0;1\nA;0.1;200;x\n",
        "strain\tstress\tnote, in words\n0\t1\t\n0.1\t200\tx, y\n",
        "strain,stress," + ",".join(f"{number:0500}" for number in range(200)) + "\n0,1\n0.1,200\n",
    ],
)
def test_marks_that_are_not_in_every_line(tmp_path: Path, content: str) -> None:
    curves = open_curves(text(tmp_path, content), units=PLAIN)

    assert curves.read(0, 1).stress.tolist() == [1, 200]


def test_longer_curves_are_thinned(tmp_path: Path) -> None:
    for points in (20, 200, 201, 202, 500, 2500):
        strain, stress = one(points)
        row = channels(csv(tmp_path, (strain, stress)))[0]
        count = min(points, 201)

        assert (row[:, : 201 - count] == 0).all() and (row[2, 201 - count :] == 1).all()
        assert np.isin(row[0], strain.astype(np.float32)).all()
        assert (np.diff(row[0, 201 - count :]) > 0).all()
        assert row[0, -1] == np.float32(strain[-1])


# ---------------------------------------------------------------------------------------------- what is no curve file


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["is empty; save the table as CSV"]),
        ("\n\n", ["is empty"]),
        ("strain,stress\n", ["has no rows"]),
        (b"PK\x03\x04" + bytes(30), ["is no text in UTF-8; save the table as CSV"]),
        ("strain,stress\n0,1\n".encode("utf-16"), ["is no text in UTF-8"]),
        ("Pr\u00fcfung,strain\n1,1\n".encode("cp1252"), ["is no table in UTF-8 below its names", "in pandas read_csv"]),
        ("hello world\nand more\n", ["no column 'strain'", "gleitung"]),
        ("strain,stress\n1,2\n1,2,3\n", ["Expected 2 fields in line 3, saw 3", "in pandas read_csv"]),
        ("strain,stress\n0,1,1,2\n0,2,1,5\n", ["rows have more cells", "decimal commas", "decimal=','"]),
        ('strain,stress\n0,"1,5"\n', ["line 2: stress is '1,5'", "decimal=','"]),
        ("strain,stress\n0,1\n\n1,x\n", ["line 4: stress is 'x'", "correct or remove the row"]),
        ("strain,stress,stress\n0,1,1\n", ["two columns are 'stress'; export it again"]),
        ("strain,stress ,stress \n0,1,1\n", ["two columns are 'stress'; export it again"]),
        ("strain,eps,stress\n0,1,1\n", ["2 columns could be strain", "--columns strain=NAME"]),
        ("specimen,strain,stress\nA,0,1\n,1,1\n", ["line 3: specimen nan is blank", "name it in all its rows"]),
        ("specimen,strain,stress\nA,0,1\nB,1,1\nA,1,1\n", ["line 4: specimen 'A' is .*there before", "sort_values"]),
        ("specimen,strain,stress\n1,0,1\n2,1,1\n1,1,1\n", ["line 4: specimen 1 is .*there before"]),
        ("s1_strain,s1_stress,s2_strain\n0,1,0\n", ["specimen 's2' needs a column of strain and one of stress"]),
        ("specimen,strain,stress,G0,a\nA,0,1,5,5\nA,1,1,6,5\n", ["line 3: specimen 'A' has G0 6; write the same"]),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    refused(text(tmp_path, content), "c.csv", *parts)


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", r"none\.csv: cannot be read \(No such file or directory\); name a CSV")
    refused(tmp_path, "is a folder without prepared_data.train or X.npy", "in pandas by concat")
    refused(text(tmp_path, b"PAR1 and more", "c.parquet"), r"c\.parquet: is no table", "in pandas")
    np.savez(tmp_path / "d.npz", eps=np.zeros((4, 30)))
    refused(tmp_path / "d.npz", r"d\.npz: is no text in UTF-8; save the table as CSV")


def test_units_are_declared_once(tmp_path: Path) -> None:
    path = csv(tmp_path, one())
    refused(path, "the unit of strain is not declared; declare one by --units strain=UNIT: 1, %", units={})
    refused(path, "the unit of stress is parsec; .*MPa, Pa, kPa", units={"strain": "%", "stress": "parsec"})
    table(one()).rename(columns={"strain": "strain [%]", "stress": "stress (mPa)"}).to_csv(path, index=False)
    refused(path, r"the unit of strain is 'strain \[%\]' and 1; leave --units out")
    refused(path, "the unit of stress is mPa", units={})


# ------------------------------------------------------------------------------------------------------- wrong curves


def changed(at: int | slice, **values: Any) -> tuple[np.ndarray, np.ndarray]:
    strain, stress = one()
    if "strain" in values:
        strain[at] = values["strain"]
    if "stress" in values:
        stress[at] = values["stress"]
    return strain, stress


STRAIN, STRESS = one()
WRONG: dict[str, tuple[tuple[np.ndarray, np.ndarray], list[str]]] = {
    "nan": (changed(7, stress=np.nan), ["line 59: stress is nan; complete or remove the row"]),
    "infinite": (changed(slice(7, 9), strain=np.inf), [r"line 59: strain is inf \(2 such\)"]),
    "few": (one(19), ["has 19 points, at least 20 are needed"]),
    "dead strain": ((STRAIN * 0 + 0.01, STRESS), ["strain is 0.01 in all points", "--columns strain=NAME"]),
    "compression": ((-STRAIN, -STRESS), ["strain is negative throughout, to -0.15; multiply the column by -1"]),
    "sign": ((STRAIN, -STRESS), [r"stress is negative throughout, to -65\.\d+ MPa"]),
    "percent": ((STRAIN * 100, STRESS), ["strain covers 15, plausible is 0.00001 to 1; correct its unit"]),
    "falls": (changed(9, strain=0.02), ["line 61: strain falls from 0.0244898 to 0.02; keep one loading"]),
    "unloading": (changed(slice(30, 50), strain=STRAIN[30:10:-1]), [r"line 83: strain falls .*19 such"]),
    "duplicate": (changed(9, strain=STRAIN[8]), ["line 61: strain is 0.0244898 again", "drop_duplicates"]),
    "dead load": ((STRAIN, STRESS * 0 + 3.5), ["stress is 3.5 MPa in all points"]),
    "kPa": ((STRAIN, STRESS * 1e3), [r"rises by 1\.\d+e\+06 MPa", "correct --units", "--any-modulus"]),
    "GPa": ((STRAIN, STRESS / 1e3), [r"rises by 1\.\d+ MPa", "a factor of 100 or 1,000 is a wrong unit"]),
    "psi": ((STRAIN, STRESS * 145.038), [r"rises by 2\.\d+e\+05 MPa"]),
    "small percent": ((STRAIN * 5, STRESS / 10), [r"rises by 33\.\d+ MPa"]),
    "exchanged": ((STRAIN, STRESS[::-1]), ["rises by -", "exchanged columns or a wrong sign"]),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("form", ["csv", "parquet", "npy"])
def test_what_is_wrong_with_a_curve(tmp_path: Path, name: str, form: str) -> None:
    """The wrong curve is the second of three; in arrays it has no name and its points have positions."""
    curve, parts = WRONG[name]
    path = csv(tmp_path, one(), curve, one())
    if form == "csv":
        refused(path, r"c\.csv, specimen 'S1'", *parts)
    elif form == "parquet":
        table(one(), curve, one()).to_parquet(tmp_path / "c.parquet")
        places = [re.sub(r"line (\d+)", lambda found: f"row {int(found[1]) - 1}", part) for part in parts]
        refused(tmp_path / "c.parquet", r"c\.parquet, specimen 'S1'", *places)
    else:
        rows = [np.stack([*each, np.ones(len(each[0]))]) for each in (one(), curve, one())]
        array = np.stack([np.pad(each, ((0, 0), (50 - each.shape[1], 0))) for each in rows])
        np.save(tmp_path / "X.npy", array)
        places = [re.sub(r"line (\d+)", lambda found: f"position {int(found[1]) - 52}", part) for part in parts]
        refused(tmp_path / "X.npy", r"X\.npy, curve 1", *places)
    if "--any-modulus" in parts:
        assert len(channels(path, any_modulus=True)) == 3


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_curve_without_points_is_named(tmp_path: Path, at: int) -> None:
    array = np.stack([np.stack([*one(), np.ones(50)])] * 3)
    array[at] = 0
    np.save(tmp_path / "X.npy", array)
    refused(tmp_path / "X.npy", rf"X\.npy, curve {at}: has 0 points")


def test_flags_of_arrays(tmp_path: Path) -> None:
    def wrong(row: int, at: int, *parts: str, **values: float) -> None:
        array = TESTS.channels.copy()
        for channel, value in values.items():
            array[row, ("strain", "stress", "flag").index(channel), at] = value
        shutil.rmtree(tmp_path / "p", ignore_errors=True)
        refused(files.write_pair(tmp_path / "p", TESTS, channels=array), rf"curve {row}, position {at}: ", *parts)

    padded = int((TESTS.channels[:, 2, 0] == 0).argmax())
    wrong(2, 150, "flag 0.5 at strain", flag=0.5)
    wrong(2, 150, "flag nan at", flag=np.nan)
    wrong(2, 150, "flag 0 at strain .*zero and at the left", flag=0)
    wrong(padded, 0, "flag 0 at strain 0;", stress=7)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.zeros((8, 201, 3)), r"has shape \(8, 201, 3\), needed is \(N, 3, L\).*transpose"),
        (np.zeros((8, 201)), r"has shape \(8, 201\)"),
        (np.zeros((8, 3, 201), complex), "holds complex128"),
        (np.zeros((8, 3, 201), "U5"), "holds <U5"),
        (np.zeros((0, 3, 201)), r"holds float64 \(0, 3, 201\)"),
        (np.array([[1, "a"]], dtype=object), "is no whole .npy file of numbers .*Python objects.*allow_pickle=False"),
    ],
)
def test_arrays_that_are_no_curves(tmp_path: Path, array: np.ndarray, part: str) -> None:
    np.save(tmp_path / "X.npy", array, allow_pickle=True)
    refused(tmp_path / "X.npy", rf"X\.npy: {part}")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """An array whose unpickling would write a file leaves no file."""

    class Harm:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return open, (str(tmp_path / "harm"), "w")

    np.save(tmp_path / "X.npy", np.array([Harm()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "c.npz", strain=np.array([[Harm()]], object), stress=np.zeros((1, 1)))
    refused(tmp_path / "X.npy", "allow_pickle=False")
    refused(tmp_path / "c.npz", "is no text in UTF-8")
    assert not (tmp_path / "harm").exists()


def test_files_cut_short(tmp_path: Path) -> None:
    for source in (
        files.write_pair(tmp_path / "p", TESTS) / "prepared_data.train",
        parquet(tmp_path / "c.parquet"),
    ):
        source.write_bytes(source.read_bytes()[:-1000])
        refused(source, rf"{source.name}: (is|cannot|holds)")


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB with nothing but holes, and tables on a machine with little memory; arrays are mapped and go on."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 10 kB\n")
    monkeypatch.setattr(room, "MEMINFO", meminfo)
    for path in (files.write_long(tmp_path / "c.csv", TESTS), parquet(tmp_path / "c.parquet")):
        refused(path, r"needs [\d,]+ bytes of memory, 10,240 are free; import a part", units=None)
    assert len(channels(files.write_pair(tmp_path / "p", TESTS))) == 8
    with open(text(tmp_path, "strain,stress\n0,1\n", "large.csv"), "r+b") as stream:
        stream.truncate(10**10)
    refused(tmp_path / "large.csv", "is no text in UTF-8")


# ---------------------------------------------------------------------------------------------------------- data sets


def not_imported(folder: Path, source: Path, *parts: str, units: Any = PLAIN, targets: Any = None, **how: Any) -> None:
    with pytest.raises(DataError) as caught:
        import_curves(open_curves(source, units=units, targets=targets), folder / "out", **how)
    assert not (folder / "out").exists(), "nothing is left behind"
    for part in parts:
        assert re.search(part, str(caught.value)), f"{part!r} is not in {str(caught.value)!r}"


def test_targets(tmp_path: Path) -> None:
    folder = files.write_pair(tmp_path / "p", TESTS)

    def refuse(targets: np.ndarray, *parts: str, **more: Any) -> None:
        np.save(tmp_path / "Y.npy", targets)
        not_imported(tmp_path, folder, *parts, targets=tmp_path / "Y.npy", **more)

    def with_value(column: int, value: float) -> np.ndarray:
        targets = TESTS.targets.copy()
        targets[5, column] = value
        return targets

    normalised = (TESTS.targets - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN
    bounds = np.array([[1500.0, 2000.0], [25.0, 45.0]])
    refuse(with_value(1, np.nan), "target a of curve 5 is nan, allowed is a positive number")
    refuse(with_value(0, -3), "target G0 of curve 5 is -3, allowed is a positive number")
    refuse(TESTS.targets * [1, 0] + [0, 30], "bounds of targets are .*a 30 to 30; .*--target-bounds")
    refuse(TESTS.targets, r"target G0 of curve \d is [\d.]+, allowed is 1500 to 2000", target_bounds=bounds)
    refuse(TESTS.targets, "bounds of targets are|allowed is", target_bounds=bounds[:, ::-1])
    refuse(normalised, "targets are normalised already", "--target-bounds 1000 3000 25 45")
    refuse(normalised * 1.9, "allowed is 1000 to 3000", target_bounds=material.TARGET_BOUNDS)
    refuse(TESTS.targets[:7], r"has shape \(7, 2\), needed is \(8, 2\)")
    refuse(TESTS.targets, "has other targets", label="lsq")
    refuse(TESTS.targets, "--label 'guess' is not known; allowed: lsq", label="guess")
    (folder / "parameter.train").unlink()
    not_imported(tmp_path, folder, "has no targets G0 and a", "--targets, or by --label lsq")


def test_targets_by_specimen(tmp_path: Path) -> None:
    wide, labels = files.write_wide(tmp_path / "w.csv", TESTS), files.write_targets(tmp_path / "t.csv", TESTS)
    shuffled = pd.read_csv(labels).sample(frac=1, random_state=1)
    shuffled.to_csv(labels, index=False)
    assert open_curves(wide, targets=labels).targets == pytest.approx(TESTS.targets)
    for rows, parts in ((shuffled[1:], "unlike are"), (pd.concat([shuffled, shuffled[:1]]), "unlike are 'P0")):
        rows.to_csv(labels, index=False)
        not_imported(tmp_path, wide, "one row for each specimen", parts, units=None, targets=labels)
    shuffled.drop(columns="a").to_csv(labels, index=False)
    not_imported(tmp_path, wide, r"t\.csv: no column 'a'", units=None, targets=labels)
    long = files.write_long(tmp_path / "c.csv", TESTS)
    not_imported(tmp_path, long, "has targets, and so has --targets", units=None, targets=labels)


def test_too_few_curves_and_too_small_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = files.write_long(tmp_path / "c.csv", files.generated(3))
    not_imported(tmp_path, few, r"holds 3 curves \(P01, P02, P03\); every fourth", "4 are needed at least", units=None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    pair = files.write_pair(tmp_path / "p", TESTS)
    not_imported(tmp_path, pair, "a data set of 8 curves needs 19,360 bytes on disk, 1,000 are free")


def test_what_an_import_records(tmp_path: Path, golden: Golden) -> None:
    import hashlib

    source = files.write_long(tmp_path / "c.csv", TESTS)
    said = import_curves(open_curves(source), tmp_path / "out")
    opened, digest = dataset.open_dataset(tmp_path / "out"), hashlib.sha256(source.read_bytes()).hexdigest()
    training = TESTS.targets[[0, 1, 2, 4, 5, 6]]

    assert said["files"] == [{"name": "c.csv", "bytes": source.stat().st_size, "sha256": digest}]
    assert said["counts"] == {"curves": 8, "points": sum(map(len, TESTS.strain)), "thinned": 0}
    assert said["ids"] == TESTS.names and said["targets"]["from"] == "given"
    assert said["targets"]["bounds"] == [[c.min(), c.max()] for c in training.T] == opened.target_bounds.tolist()
    assert said["self_check"]["median_g0_mpa"] == pytest.approx(np.median(TESTS.targets[:, 0]), rel=0.05)
    json.dumps(said, allow_nan=False)
    golden("\n".join(lines(said)), "8 curves", "MPa", "6 curves")


def test_labels_by_least_squares(tmp_path: Path) -> None:
    clean = files.generated(noise_max_mpa=0.0)
    curves = open_curves(files.write_wide(tmp_path / "w.csv", clean))
    said = import_curves(curves, tmp_path / "out", label="lsq", target_bounds=material.TARGET_BOUNDS)
    opened = dataset.open_dataset(tmp_path / "out")

    assert said["targets"]["from"] == "least squares"
    physical = opened.target_bounds[:, 0] + opened.targets * opened.target_span
    assert physical == pytest.approx(clean.targets, abs=1e-3)
    assert opened.floor is None, "labels that are fits themselves have no floor of this kind"


def test_the_floor_is_estimated_from_the_residuals(tmp_path: Path) -> None:
    """Estimates scatter out of the box at its edges, which is no reason for a warning."""
    pair = files.write_pair(tmp_path / "p", files.generated(400, noise_max_mpa=1.0))
    said = import_curves(open_curves(pair, units=PLAIN), tmp_path / "out", target_bounds=material.TARGET_BOUNDS)
    dataset.generate(tmp_path / "generated", 400, seed=5)
    estimated, known = (dataset.open_dataset(tmp_path / name).floor for name in ("out", "generated"))

    assert said["warnings"] == []
    assert estimated is not None and known is not None and estimated["estimated"] is True
    assert estimated["mse"] == pytest.approx(known["mse"], rel=0.1)


def test_large_pairs_go_in_blocks_and_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = files.generated(50)
    monkeypatch.setattr(reading, "_BLOCK", 7)
    monkeypatch.setattr(reading, "_FITTED", 10)
    told = []
    curves = open_curves(files.write_pair(tmp_path / "p", many), units=PLAIN)
    said = import_curves(curves, tmp_path / "out", on_progress=lambda *each: told.append(each))

    assert [len(points.counts) for _, points in curves.blocks()] == [7] * 7 + [1]
    assert np.array_equal(dataset.open_dataset(tmp_path / "out").curves, many.channels)
    assert (said["self_check"]["curves"], said["self_check"]["of"]) == (10, 50)
    assert ("checking curves", 50, 50) in told and ("writing", 50, 50) in told


def test_warnings(tmp_path: Path) -> None:
    good = [one(g0=2000.0 + k, a=30.0 + k) for k in range(3)]

    def warned(last: tuple[np.ndarray, np.ndarray], factor: float = 1.0, **how: Any) -> str:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        curves = [(x, y * factor) for x, y in (*good, last)]
        frame = table(*curves, width=1)
        number = frame["specimen"].str[1:].astype(int)
        frame.assign(G0=2000 + number, a=30 + number).to_csv(tmp_path / "c.csv", index=False)
        return "\n".join(
            import_curves(open_curves(tmp_path / "c.csv", units=PLAIN), tmp_path / "out", **how)["warnings"]
        )

    strain, stress = one()
    assert warned(one(a=33.0)) == "columns not used: width"
    found = warned(one(a=15.0))
    assert re.search(r"1 of 4 fits have G0 or a outside 1000 to 3000 MPa and 25 to 45.*'S3' \(G0 2000 MPa, a 15", found)
    found = warned((strain, stress + 12 * np.sin(60 * strain)), any_modulus=True)
    assert "1 of 4 fits have rms above 5 % of the peak: the saturating law does not describe them" in found
    assert "the fitted G0 is 0.5 times the given one" in warned(one(), factor=0.5)


# -------------------------------------------------------------------------------------------------- the command line


def test_import_check_and_train(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    from horovod_study import train

    frame = files.long(files.generated(40)).set_axis(["specimen", "x", "stress", "G0", "a"], axis=1)
    frame.to_csv(tmp_path / "c.csv", index=False)
    out = tmp_path / "out"
    words = ["strain", "data", "import", str(tmp_path / "c.csv"), "--out", str(out)]
    words += ["--columns", "strain=x", "--units", "strain=1, stress=MPa"]
    bounds = ["--target-bounds", "1000", "3000", "25", "45"]

    assert main([*words[:5], str(tmp_path / "json"), "--json", *words[6:], *bounds]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["curves"] == 40
    assert main(words) == 0
    said = capsys.readouterr().out
    golden.line(said, "30 curves", "10")
    golden.line(said, "-m horovod_study.train --dataset", out)
    assert main(["strain", "data", "check", str(out)]) == 0
    assert "good" in capsys.readouterr().out
    trained = [
        "--dataset",
        str(out),
        "--batch",
        "5",
        "--steps",
        "3",
        "--warmup-steps",
        "0",
        "--out",
        str(tmp_path / "r"),
    ]
    assert train.main(trained) == 0
    capsys.readouterr()
    for more, part in (
        ([], "exists already; choose another --out, or remove it first"),
        (["--units", "starin=1"], "--units: unknown key 'starin' (did you mean 'strain'?); allowed: strain, stress"),
        (["--columns", "strain"], "--columns: strain is given no value; write strain=..."),
    ):
        assert main([*words, *more]) == 2
        err = capsys.readouterr().err
        assert part in err and err.count("\n") == 1
