"""Whatever can be wrong with curve files: one line that names file, place, value and remedy.

The numbers are those of the list in docs/curves.md; 26 (a shard smaller than a batch) belongs to the trainer.
"""

import io
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make import curve_files as files
from make.wording import Golden

from horovod_study.errors import DataError
from horovod_study.workload import material, room
from horovod_study.workload.curves import ReadOptions, importing, read_curves
from horovod_study.workload.curves.blocks import CurveBlocks
from horovod_study.workload.curves.checks import Tally
from horovod_study.workload.curves.reading import open_curves
from horovod_study.workload.dataset import Batches

TESTS = files.generated()
UNITS = {"strain_unit": "1", "stress_unit": "MPa"}


def one(points: int = 50, *, end: float = 0.15, g0: float = 2000.0, a: float = 30.0) -> tuple[np.ndarray, np.ndarray]:
    strain = np.linspace(0, end, points)
    return strain, g0 / a * -np.expm1(-a * strain)


def csv(folder: Path, strain: Any, stress: Any, *, header: str = "strain,stress", name: str = "c.csv") -> Path:
    rows = [f"{x!r},{y!r}" for x, y in zip(np.asarray(strain).tolist(), np.asarray(stress).tolist(), strict=True)]
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name


def text(folder: Path, content: str | bytes, name: str = "c.csv") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def lines_of(*, line: int, cells: str, header: str = "strain,stress") -> str:
    """A good table whose given line is replaced."""
    strain, stress = one()
    rows = [header, *(f"{x!r},{y!r}" for x, y in zip(strain.tolist(), stress.tolist(), strict=True))]
    rows[line - 1] = cells
    return "\n".join(rows) + "\n"


def refused(path: Path, **options: Any) -> str:
    """Read, and return the message, which is one line and begins with the file or an option."""
    given = ReadOptions(**{**UNITS, **options})
    with pytest.raises(DataError) as caught:
        opened = open_curves(path, given, None)
        if isinstance(opened, CurveBlocks):
            list(opened.checked(given, Tally(), None, ""))
    message = str(caught.value)
    assert "\n" not in message
    return message


def check(message: str, *parts: str) -> None:
    for part in parts:
        assert re.search(part, message), f"{part!r} is not in {message!r}"


# ------------------------------------------------------------------------------------------------------ 1 to 3: text


def test_1_nothing_there(tmp_path: Path) -> None:
    check(refused(tmp_path / "none.csv"), r"none\.csv: no such file or folder; name a curve file")
    check(refused(text(tmp_path, "")), r"c\.csv: is empty \(0 bytes\); a file with curves was expected")
    check(refused(text(tmp_path, "\n\n  \n")), r"c\.csv: is empty; a line with the names of the columns")
    check(refused(text(tmp_path, "strain,stress\n")), r"c\.csv line 1: no rows follow the names of the columns")
    check(refused(text(tmp_path, "strain,stress\n(%),(MPa)\n\n")), r"c\.csv line 1: no rows follow")
    check(refused(text(tmp_path, "hello world\nand more\n")), r"c\.csv: no row holds two numbers", "'hello world'")
    check(refused(text(tmp_path, b"\x00\x01\x02\x03" * 9)), r"c\.csv: is not a text file; save the table as CSV")
    (tmp_path / "folder").mkdir()
    check(refused(tmp_path / "folder"), "folder: holds no curve file; one file per test was expected")
    check(refused(text(tmp_path, b"PK\x03\x04 a book", "c.xlsx")), r"c\.xlsx: is a spreadsheet; save its table as CSV")
    check(refused(tmp_path / "folder", layout="wide"), "is a folder, --layout wide reads a file")
    check(refused(text(tmp_path, "x"), layout="folder"), "is a file, --layout folder reads a folder")


def test_2_columns(tmp_path: Path) -> None:
    message = refused(csv(tmp_path, *one(), header="extension,load"))
    check(
        message,
        r"c\.csv line 1: no column of strain",
        "columns found: 'extension', 'load'",
        "dehnung",
        "--strain-column",
    )
    message = refused(csv(tmp_path, *one(), header="strain,load"))
    check(
        message, r"c\.csv line 1: no column of stress", "'strain', 'load'", "spannung, stress, tau", "--stress-column"
    )
    wide = np.stack([one()[0], one()[0], one()[1]], axis=1)
    rows = "\n".join(["strain,e_true,stress", *(",".join(map(repr, row)) for row in wide.tolist())])
    path = text(tmp_path, rows)
    check(refused(path), "2 columns could be strain: 'strain', 'e_true'; say which one it is with --strain-column")
    check(refused(path, strain_column="eps"), "no column 'eps'; columns found: 'strain', 'e_true'", "--strain-column")
    check(refused(path, strain_column="stress"), "'stress' is named for strain and for stress")
    assert read_curves(path, ReadOptions(**UNITS, strain_column="E_True")).size == 1
    with np.load(files.write_npz(tmp_path / "c.npz", TESTS)) as archive:
        np.savez(tmp_path / "d.npz", eps=archive["strain"], stress=archive["stress"])
    check(refused(tmp_path / "d.npz"), r"d\.npz: no array 'strain'; arrays found: eps, stress; needed are strain and")


def test_2_wide_columns(tmp_path: Path) -> None:
    path = text(tmp_path, "s1_strain,s1_stress,s2_strain\n" + "0.1,1,0.1\n0.2,2,0.3\n" * 20)
    check(refused(path), r"c\.csv line 1: specimen 's2' has 0 columns of stress \(none\)")
    check(refused(csv(tmp_path, *one()), layout="wide"), "no pairs of columns", "s1_strain, s1_stress", "--layout long")


def test_3_text_for_a_number(tmp_path: Path) -> None:
    message = refused(text(tmp_path, lines_of(line=7, cells="0.02,broken")))
    check(message, r"c\.csv line 7: 'stress' is 'broken', not a number with decimal point; correct the cell")
    message = refused(text(tmp_path, lines_of(line=7, cells='"0,02",30')))
    check(message, r"c\.csv line 7: 'strain' is '0,02'", "set --decimal , --delimiter ;")
    message = refused(text(tmp_path, lines_of(line=7, cells="0,02,30,1")))
    check(message, r"c\.csv line 7: 4 cells where line 1 names 2 columns", "set --decimal , --delimiter ;")
    german = text(tmp_path, "strain;stress\n" + "\n".join(f"0,{k:03};{k},5" for k in range(50)))
    check(refused(german, decimal="."), r"c\.csv line 2: '0,000' is not a number with --decimal \.; .*--delimiter ;")
    unquoted = text(tmp_path, "strain,stress\n" + "\n".join(f"0,{k:03},{k},5" for k in range(50)))
    check(refused(unquoted), r"c\.csv line 2: 4 cells where line 1 names 2 columns", "set --decimal , --delimiter ;")


def test_ambiguity_is_not_guessed(tmp_path: Path) -> None:
    path = text(tmp_path, "strain;stress\n" + "\n".join(f"{k};{k},{100 + k}" for k in range(1, 50)))
    check(
        refused(path),
        r"c\.csv line 2: '1,101' is 1101 with a decimal point and 1\.101 with a decimal comma",
        "--decimal",
    )
    path = text(tmp_path, "strain;stress\n0.5;1\n0.6;2\n0,7;3\n")
    check(refused(path), r"'0\.5' \(line 2\) is a number with a decimal point only and '0,7' \(line 4\)", "--decimal")
    path = text(tmp_path, "strain, stress, x; y; z\n" + "1, 2, x; 3; 4\n" * 30)
    check(
        refused(path), r"c\.csv: the rows are numbers with comma and with semicolon between the columns; say which with"
    )


# -------------------------------------------------------------------------------------------- 4 to 12: the values


@pytest.mark.parametrize(
    ("cells", "part"),
    [("0.02,", "stress is blank or NaN"), ("nan,40", "strain is blank or NaN"), ("0.02,-inf", "stress is -inf")],
)
def test_4_not_finite(tmp_path: Path, cells: str, part: str) -> None:
    path = text(tmp_path, lines_of(line=9, cells=cells))
    check(refused(path), rf"c\.csv, specimen 'c', line 9: {part} \(1 such points of 50\)", "--drop-nonfinite")
    curves = read_curves(path, ReadOptions(**UNITS, drop_nonfinite=True))
    assert len(curves.strain[0]) == 49
    assert curves.counts["points dropped, not finite"] == 1


def test_4_inner_blank_in_a_wide_table(tmp_path: Path) -> None:
    path = files.write_wide(tmp_path / "w.csv", TESTS)
    rows = path.read_text().splitlines()
    cells = rows[40].split(",")
    cells[3] = ""
    rows[40] = ",".join(cells)
    path.write_text("\n".join(rows))
    check(refused(path), r"w\.csv, specimen 'P02', line 41: stress is blank or NaN", "--drop-nonfinite")


def test_5_unequal_lengths(tmp_path: Path) -> None:
    path = files.write_wide(tmp_path / "w.csv", TESTS)
    length = len(TESTS.strain[0])
    rows = path.read_text().splitlines()
    rows[length] = ",".join(["", *rows[length].split(",")[1:]])
    path.write_text("\n".join(rows))
    check(
        refused(path), rf"specimen 'P01': 'P01_strain \[1\]' has {length - 1} values, 'P01_stress \[MPa\]' has {length}"
    )

    np.savez(tmp_path / "c.npz", strain=np.zeros((3, 50)), stress=np.zeros((3, 49)))
    check(refused(tmp_path / "c.npz"), r"c\.npz: strain has shape \(3, 50\), stress \(3, 49\); every point needs both")

    pq.write_table(pa.table({"strain": [[0.0, 1.0]], "stress": [[1.0]]}), tmp_path / "c.parquet")
    check(refused(tmp_path / "c.parquet"), "row 1, specimen '0': strain has 2 values, stress has 1")


def test_6_too_few_points(tmp_path: Path) -> None:
    check(refused(csv(tmp_path, *one(19))), r"c\.csv, specimen 'c': has 19 points, at least 20 are needed")
    assert len(read_curves(csv(tmp_path, *one(20)), ReadOptions(**UNITS)).strain[0]) == 20


def pair(folder: Path, channels: np.ndarray) -> Path:
    shutil.rmtree(folder / "p", ignore_errors=True)
    changed = files.Tests(
        names=TESTS.names, strain=TESTS.strain, stress=TESTS.stress, targets=TESTS.targets, channels=channels
    )
    return files.write_pair(folder / "p", changed)


def test_7_all_padding_or_no_strain(tmp_path: Path) -> None:
    channels = TESTS.channels.copy()
    channels[3] = 0
    check(refused(pair(tmp_path, channels)), r"prepared_data\.train, curve 3: is all padding \(flag 0 throughout\)")
    check(refused(csv(tmp_path, np.full(50, 0.01), one()[1])), "specimen 'c': strain is 0.01 in all 50 points", "dead")
    source = files.write_npz(tmp_path / "c.npz", TESTS, kind="length")
    with np.load(source) as archive:
        arrays = dict(archive)
    arrays["length"][2] = 0
    np.savez(source, **arrays)
    check(refused(source), "array 'length': curve 2 has length 0, it is all padding")


def test_8_flags(tmp_path: Path) -> None:
    channels = TESTS.channels.copy()
    channels[2, 2, 100] = 0.5
    check(refused(pair(tmp_path, channels)), r"train, curve 2, position 100: flag is 0\.5, allowed are 1 on data and 0")
    channels[2, 2, 100] = np.nan
    check(refused(pair(tmp_path, channels)), "curve 2, position 100: flag is nan")
    channels[2, :, 100] = 0
    check(refused(pair(tmp_path, channels)), "curve 2, position 100: flag 0 behind flag 1; padding is at the left")
    channels = TESTS.channels.copy()
    padded = int((channels[:, 2, 0] == 0).argmax())
    channels[padded, 1, 0] = 7
    message = refused(pair(tmp_path, channels))
    check(message, f"curve {padded}, position 0: strain 0 and stress 7 under flag 0; padding is zero")


def test_9_strain_not_increasing(tmp_path: Path) -> None:
    strain, stress = one()
    strain[[10, 30]] = strain[9], strain[28] - 1e-4
    path = csv(tmp_path, strain, stress)
    message = refused(path)
    check(
        message, r"c\.csv, specimen 'c', line 12: strain is 0\.0275\d+ after 0\.0275", "2 of 49 steps do not increase"
    )
    check(
        message, "1 repeat the strain before", "1 go back, by .* of the range at most", "--on-nonmonotonic drop", "sort"
    )

    dropped = read_curves(path, ReadOptions(**UNITS, on_nonmonotonic="drop"))
    assert dropped.counts["points dropped, strain not increasing"] == 2
    assert np.array_equal(dropped.strain[0], np.delete(strain, [10, 30]))
    ordered = read_curves(path, ReadOptions(**UNITS, on_nonmonotonic="sort"))
    assert ordered.counts["points dropped, strain repeated"] == 1
    assert ordered.counts["points moved by sorting"] == 3
    assert np.array_equal(ordered.strain[0], np.sort(np.delete(strain, 10)))
    assert sorted(ordered.stress[0]) == sorted(np.delete(stress, 10))


def test_9_drop_leaves_out_all_that_was_reached_before(tmp_path: Path) -> None:
    strain, stress = one()
    strain[11:13] = strain[10] - [2e-3, 1e-3]
    read = read_curves(csv(tmp_path, strain, stress), ReadOptions(**UNITS, on_nonmonotonic="drop"))
    assert np.array_equal(read.strain[0], np.delete(strain, [11, 12]))


def test_10_cyclic(tmp_path: Path) -> None:
    strain, stress = one()
    strain = np.concatenate([strain[:30], strain[20:30][::-1], strain[30:]])
    stress = np.concatenate([stress[:30], stress[20:30][::-1], stress[30:]])
    path = csv(tmp_path, strain, stress)
    for how in ("error", "drop", "sort"):
        message = refused(path, on_nonmonotonic=how)
        check(
            message, r"c\.csv, specimen 'c', line 3\d: strain goes back to", "18 % of its range", "monotonic tests only"
        )


def test_11_time_goes_back(tmp_path: Path) -> None:
    strain, stress = one()
    rows = [f"{k % 30},{x},{y}" for k, (x, y) in enumerate(zip(strain.tolist(), stress.tolist(), strict=True))]
    path = text(tmp_path, "\n".join(["time (s),strain,stress", *rows]))
    check(refused(path), "line 32: time goes back from 29 to 0; two files pasted together")


def test_12_negative_throughout(tmp_path: Path) -> None:
    strain, stress = one()
    path = csv(tmp_path, -strain, -stress)
    check(refused(path), r"specimen 'c': strain is negative throughout \(-0\.15 at most\)", "--flip-sign")
    curves = read_curves(path, ReadOptions(**UNITS, flip_sign=True))
    assert np.array_equal(curves.strain[0], strain) and np.array_equal(curves.stress[0], stress)
    assert (
        curves.counts["curves whose strain was turned over"]
        == curves.counts["curves whose stress was turned over"]
        == 1
    )
    check(refused(csv(tmp_path, strain, -stress)), "stress is negative throughout", "--flip-sign")
    noisy = -stress
    noisy[0] = 0.4  # noise around the origin does not make a sign
    check(refused(csv(tmp_path, -strain, noisy)), "strain is negative throughout")
    curves = read_curves(csv(tmp_path, -strain, noisy), ReadOptions(**UNITS, flip_sign=True))
    assert np.array_equal(curves.stress[0], -noisy)


# ------------------------------------------------------------------------------------------------ 13 to 17: plausible


def test_13_units_undeclared(tmp_path: Path) -> None:
    path = csv(tmp_path, *one())
    check(
        refused(path, strain_unit=None),
        "the unit of strain is not declared; give --strain-unit, one of 1 ",
        "microstrain",
    )
    check(refused(path, stress_unit=None), "the unit of stress is not declared; give --stress-unit, one of MPa", "ksi")
    for source in (
        files.write_npz(tmp_path / "c.npz", TESTS),
        files.write_pair(tmp_path / "q", TESTS),
        files.write_parquet(tmp_path / "c.parquet", TESTS, lists=True),
    ):
        check(refused(source, strain_unit=None), "the unit of strain is not declared")
    path = csv(tmp_path, *one(), header="strain [%],stress [N/mm2]")
    check(refused(path), "the file gives strain in %, --strain-unit says 1; leave the option out")
    path = csv(tmp_path, *one(), header="strain [kN],stress [MPa]")
    check(refused(path, strain_unit=None), "the unit of strain in the file, 'kN' is no unit of strain; allowed: 1 ")
    path = csv(tmp_path, *one(), header="strain [1],stress [mPa]")
    check(refused(path, stress_unit=None, strain_unit=None), "'mPa' is no unit of stress .*did you mean 'MPa'")


@pytest.mark.parametrize(
    ("strain_factor", "stress_factor", "cause"),
    [
        (1, 145.038, r"stress in psi \(x145"),
        (1, 1 / 145.038, r"strain in % \(/100: 1153 MPa\)"),
        (1, 1e3, r"stress in kPa \(x1e\+03"),
        (1, 1e6, r"stress in Pa \(x1e\+06"),
        (1, 1e-3, r"stress in GPa \(/1e\+03"),
        (5, 1, r"strain|stress"),
    ],
)
def test_14_implausible_slope(tmp_path: Path, strain_factor: float, stress_factor: float, cause: str) -> None:
    strain, stress = one()
    factor = 20 if strain_factor == 5 else 1
    path = csv(tmp_path, strain * strain_factor, stress * stress_factor / factor)
    message = refused(path)
    check(
        message, r"specimen 'c': the slope of the first tenth of the strain is [\d.e+-]+ MPa with strain in '1'", cause
    )
    check(message, "plausible is 200 to 15000", "--any-modulus")
    assert read_curves(path, ReadOptions(**UNITS, any_modulus=True)).size == 1


def test_14_units_of_strain(tmp_path: Path) -> None:
    strain, stress = one(end=0.009, a=500.0)
    check(refused(csv(tmp_path, strain * 100, stress)), r"slope", r"strain in % \(/100")
    check(refused(csv(tmp_path, strain * 0.01, stress)), "slope", r"no other single unit|stress in")
    check(
        refused(csv(tmp_path, *one()), stress_unit="psi"),  # MPa, declared psi
        r"slope of the first tenth of the strain is 1[0-3]\.\d+ MPa",
        r"stress in MPa \(/145",
    )
    check(refused(csv(tmp_path, one()[0], one()[1][::-1])), "does not rise with strain|stress falls")


def test_15_implausible_strain(tmp_path: Path) -> None:
    strain, stress = one()
    check(
        refused(csv(tmp_path, strain * 100, stress)),
        "strain covers 15 in total with the unit '1'",
        r"percent\? microstrain\?",
    )
    check(refused(csv(tmp_path, strain, stress), strain_unit="microstrain"), "strain covers 1.5e-07", "--strain-unit")


def test_16_dead_load_channel(tmp_path: Path) -> None:
    strain, _ = one()
    check(
        refused(csv(tmp_path, strain, np.zeros(50))),
        "specimen 'c': stress is 0 MPa throughout; the load channel was dead",
    )
    check(refused(csv(tmp_path, strain, np.full(50, 3.5))), "stress is 3.5 MPa throughout")


def test_17_tail_after_failure(tmp_path: Path) -> None:
    strain, stress = one()
    stress[40:] = 5.0
    path = csv(tmp_path, strain, stress)
    read = read_curves(path, ReadOptions(**UNITS))
    assert len(read.strain[0]) == 50
    check(
        read.warnings[0],
        r"1 of 1 curves have a tail after failure \(--cut-at-peak removes it\)",
        "line 41: stress falls by 92 %",
    )
    check(
        refused(path, strict=True),
        r"c\.csv, specimen 'c', line 41: stress falls by 92 % after its peak of 6\d",
        "--cut-at-peak",
    )
    cut = read_curves(path, ReadOptions(**UNITS, cut_at_peak=True, strict=True))
    assert len(cut.strain[0]) == 40
    assert cut.counts["points cut after the peak"] == 10
    assert cut.warnings == ()
    stress = one()[1]
    stress[[30, 45]] = 70.0, 20.0
    assert read_curves(csv(tmp_path, strain, stress), ReadOptions(**UNITS)).warnings == (), "one low point is noise"


# -------------------------------------------------------------------------------------------------- 18 to 21: arrays


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((8, 201, 3), (r"has shape \(8, 201, 3\), needed is \(N, 3, 201\)", r"transpose \(0, 2, 1\)")),
        ((8, 3, 150), ("has 150 points per curve", r"needed is \(N, 3, 201\)", "as a .npz")),
        ((8, 201), (r"has shape \(8, 201\), needed is \(N, 3, 201\)",)),
        ((8, 2, 201), (r"has shape \(8, 2, 201\), needed is",)),
    ],
)
def test_18_shapes(tmp_path: Path, shape: tuple[int, ...], parts: tuple[str, ...]) -> None:
    np.save(tmp_path / "X.npy", np.zeros(shape))
    check(refused(tmp_path / "X.npy"), r"X\.npy: ", *parts)


def test_18_shapes_in_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", strain=np.zeros(50), stress=np.zeros(50))
    check(
        refused(tmp_path / "c.npz"), r"array 'strain': has shape \(50,\), needed is \(N, L\); flat arrays need offsets"
    )
    np.savez(tmp_path / "c.npz", strain=np.zeros(50), stress=np.zeros(50), offsets=[0, 60])
    check(refused(tmp_path / "c.npz"), "array 'offsets': runs from 0 to 60 for 50 points")
    np.savez(tmp_path / "c.npz", strain=np.zeros((2, 50)), stress=np.zeros((2, 50)), length=[50, 51])
    check(refused(tmp_path / "c.npz"), "array 'length': curve 1 has length 51, its row has 50 points")


def test_19_numbers_of_curves_and_targets(tmp_path: Path) -> None:
    folder = files.write_pair(tmp_path / "p", TESTS)
    with open(folder / "parameter.train", "wb") as stream:
        np.save(stream, TESTS.targets[:7])
    check(refused(folder), r"parameter\.train: holds targets of 7 curves, there are 8 curves")


def test_19_ids(tmp_path: Path) -> None:
    path = files.write_long(tmp_path / "c.csv", TESTS)
    path.write_text(path.read_text() + "P01,0.1,50,1,1\n")
    check(
        refused(path, strain_unit=None, stress_unit=None),
        r"c\.csv line \d+: specimen 'P01' begins again, its rows from line 2 on",
    )

    path = files.write_long(tmp_path / "c.csv", TESTS, header="specimen,strain,stress", targets=False)
    table = files.write_targets(tmp_path / "t.csv", TESTS)
    full = table.read_text()
    table.write_text(full + "X9,1000,30\nX10,1000,30\n")
    check(
        refused(path, targets=table),
        r"t\.csv: 2 of 10 ids have no curve \('X9', 'X10'\); the 8 curves are 'P01', 'P02', 'P03'",
    )
    table.write_text(full.replace("P04", "P03"))
    check(refused(path, targets=table), r"t\.csv: 1 ids appear more than once \('P03'\); keep one row of each")
    table.write_text("".join(full.splitlines(keepends=True)[:-1]))
    check(refused(path, targets=table), r"t\.csv: 1 of 8 curves are not in the table \('P08'\)")
    check(refused(path, targets=tmp_path / "none.csv"), "--targets .*none.csv: no such file")
    check(
        refused(files.write_long(tmp_path / "d.csv", TESTS), targets=table, strain_unit=None),
        "has targets, and so has --targets",
    )

    source = files.write_npz(tmp_path / "c.npz", TESTS)
    with np.load(source) as archive:
        arrays = {**archive, "ids": np.array(["A", "A", *TESTS.names[2:]])}
    np.savez(source, **arrays)
    check(refused(source), r"array 'ids': 1 ids appear more than once \('A'\)")

    folder = files.write_folder(tmp_path / "f", TESTS)
    (folder / "P03.csv").unlink()
    check(refused(folder, strain_unit=None, stress_unit=None), r"info\.csv: 1 of 8 ids have no curve \('P03'\)")


def test_19_targets_that_change(tmp_path: Path) -> None:
    path = files.write_long(tmp_path / "c.csv", TESTS)
    rows = path.read_text().splitlines()
    rows[5] = ",".join([*rows[5].split(",")[:3], "77.0", "30.0"])
    path.write_text("\n".join(rows))
    check(
        refused(path, strain_unit=None),
        r"specimen 'P01', line 6: G0 is 77, \d+\.?\d* in the rows before; a specimen has one G0",
    )


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (
            np.array([[1, "a"]], dtype=object),
            "holds Python objects, which only pickle could read .*re-save without pickle",
        ),
        (np.zeros((8, 3, 201), complex), "holds complex numbers .*re-save without pickle"),
        (np.zeros((8, 3, 201), "U5"), "holds strings .*re-save without pickle"),
        (np.zeros(3, [("x", "f4")]), "holds structures"),
    ],
)
def test_20_types(tmp_path: Path, array: np.ndarray, what: str) -> None:
    np.save(tmp_path / "X.npy", array, allow_pickle=True)
    check(refused(tmp_path / "X.npy"), rf"X\.npy: {what}")
    np.savez(tmp_path / "c.npz", strain=array, stress=np.zeros((8, 201)))
    check(refused(tmp_path / "c.npz"), rf"c\.npz, array 'strain': {what}")


def test_20_nothing_is_unpickled(tmp_path: Path) -> None:
    """An array whose unpickling would write a file leaves no file."""

    class Harm:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return open, (str(tmp_path / "harm"), "w")

    np.save(tmp_path / "X.npy", np.array([Harm()], dtype=object), allow_pickle=True)
    refused(tmp_path / "X.npy")
    np.savez(tmp_path / "s.npz", X_train=TESTS.channels[:6], X_test=TESTS.channels[6:], meta=np.array([Harm()], object))
    assert open_curves(tmp_path / "s.npz", ReadOptions(**UNITS), None).size == 8
    assert not (tmp_path / "harm").exists()


def test_20_text_in_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"strain": ["0.1", "x"], "stress": [1.0, 2.0]}), tmp_path / "c.parquet")
    check(refused(tmp_path / "c.parquet"), r"c\.parquet: column 'strain' holds string, real numbers are needed")


def test_21_cut_short(tmp_path: Path) -> None:
    folder = files.write_pair(tmp_path / "p", TESTS)
    size = (folder / "prepared_data.train").stat().st_size
    files.cut_short(folder / "prepared_data.train")
    check(
        refused(folder),
        rf"prepared_data\.train: is {size - 1000:,} bytes long, its header promises {size:,}; it was cut short",
    )
    for source in (
        files.write_npz(tmp_path / "c.npz", TESTS),
        files.write_parquet(tmp_path / "c.parquet", TESTS, lists=True),
    ):
        size = files.cut_short(source).stat().st_size
        check(refused(source), rf"{source.name}: is not a complete .* file of {size:,} bytes", "copy it again")
    stream = io.BytesIO()
    np.save(stream, TESTS.channels)
    content = bytearray(stream.getvalue())
    content[6] = 9
    check(
        refused(text(tmp_path, bytes(content), "X.npy")),
        r"X\.npy: is a \.npy file of version 9\.0, versions 1\.0 and 2\.0",
    )
    check(refused(text(tmp_path, bytes(content[:40]), "Z.npy")), r"Z\.npy: is a")
    content[6] = 1
    check(refused(text(tmp_path, bytes(content[:40]), "Y.npy")), r"Y\.npy: is not a \.npy file")


# --------------------------------------------------------------------------------------------- 22 to 26: data sets


def not_imported(folder: Path, source: Path, *, label: str | None = None, bounds: Any = None, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        importing.import_curves(
            source,
            folder / "out",
            ReadOptions(**options),
            label=label,
            target_bounds=None if bounds is None else np.array(bounds, float),
        )
    assert not (folder / "out").exists(), "nothing is left behind"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_22_targets(tmp_path: Path) -> None:
    folder = files.write_pair(tmp_path / "p", TESTS)

    def refuse(targets: np.ndarray, **more: Any) -> str:
        with open(folder / "parameter.train", "wb") as stream:
            np.save(stream, targets)
        return not_imported(tmp_path, folder, **UNITS, **more)

    targets = TESTS.targets.copy()
    targets[5, 1] = np.nan
    check(refuse(targets), r"p: target a of curve 5 is nan \(1 such values\)")
    targets = TESTS.targets.copy()
    targets[:, 1] = 30
    check(refuse(targets), "target a is 30 for every training curve", "--target-bounds")
    message = refuse(TESTS.targets, bounds=[[1500, 2000], [25, 45]])
    check(
        message,
        r"target G0 of curve \d is [\d.]+, outside the bounds 1500 to 2000 of --target-bounds",
        "wider --target-bounds",
    )
    normalised = (TESTS.targets - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN
    check(
        refuse(normalised),
        r"targets are normalised already \(G0 from 0\.\d+ to 0\.\d+\)",
        "--target-bounds 1000 3000 25 45",
    )
    check(refuse(normalised * 1.9, bounds=material.TARGET_BOUNDS), "outside the bounds")
    check(refuse(TESTS.targets[:, :1]), r"parameter\.train: has shape \(8, 1\), targets have \(N, 2\)")
    (folder / "parameter.train").unlink()
    check(
        not_imported(tmp_path, folder, **UNITS),
        "has no targets G0 and a, which training needs",
        "--targets",
        "--label lsq",
    )
    check(
        not_imported(tmp_path, files.write_long(tmp_path / "c.csv", TESTS), label="lsq"), "has targets, and --label lsq"
    )


@pytest.mark.parametrize("count", [1, 3])
def test_23_no_test_curve(tmp_path: Path, count: int) -> None:
    source = files.write_long(tmp_path / "c.csv", files.generated(count))
    check(
        not_imported(tmp_path, source),
        rf"c\.csv: holds {count} curve",
        "every fourth specimen",
        "i % 4 = 3",
        "4 are needed",
    )


def test_24_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = files.write_parquet(tmp_path / "c.parquet", TESTS, lists=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check(
        refused(source),
        r"c\.parquet: reading Parquet needs pyarrow, which is not installed; run `pip install 'pyarrow>=17'`",
    )


def test_25_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 10 kB\n")
    long = files.write_long(tmp_path / "c.csv", TESTS)
    npz, folder = files.write_npz(tmp_path / "c.npz", TESTS), files.write_pair(tmp_path / "p", TESTS)
    with monkeypatch.context() as patch:
        patch.setattr(room, "MEMINFO", meminfo)
        check(
            refused(npz),
            r"c\.npz: reading it needs [\d,]+ bytes of memory, 10,240 are free; import a \.npy pair instead",
        )
        check(refused(long, strain_unit=None), r"c\.csv: reading it needs [\d,]+ bytes of memory")
        importing.import_curves(folder, tmp_path / "blocks", ReadOptions(**UNITS))  # goes in blocks

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    message = not_imported(tmp_path, folder, **UNITS)
    check(message, r"out: a data set of 8 curves needs 19,360 bytes on disk, 1,000 are free; choose another --out")


def test_26_a_batch_larger_than_the_data_set(golden: Golden) -> None:
    with golden.raises(DataError, match="batch 75.*4 workers = 300 curves"):
        Batches(6, batch=75, rank=0, workers=4, seed=1)


# ------------------------------------------------------------------------------------------------------------ warnings


def warnings_of(folder: Path, source: Path, **options: Any) -> list[str]:
    shutil.rmtree(folder / "out", ignore_errors=True)
    found: list[str] = importing.import_curves(source, folder / "out", ReadOptions(**options))["warnings"]
    return found


def several(path: Path, curves: list[tuple[np.ndarray, np.ndarray]]) -> Path:
    rows = ["specimen,strain (1),stress (MPa),G0,a,thickness"]
    for k, (strain, stress) in enumerate(curves):
        rows += [
            f"S{k},{x!r},{y!r},{2000 + k},{30 + k},1" for x, y in zip(strain.tolist(), stress.tolist(), strict=True)
        ]
    path.write_text("\n".join(rows))
    return path


def test_warnings(tmp_path: Path, golden: Golden) -> None:
    strain, stress = one()
    good = [one(g0=2000.0 + k, a=30.0 + k) for k in range(3)]
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, one(a=15.0)])))
    check(found, "1 of 4 fitted curves have a fitted G0 or a outside 1000 to 3000 MPa and 25 to 45", "extrapolates")
    check(found, r"specimen 'S3' \(G0 2000 MPa, a 15")
    wave = stress + 12 * np.sin(60 * strain)
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, (strain, wave)]), any_modulus=True))
    check(
        found,
        "1 of 4 fitted curves have a fit with rms above 5 % of the peak, the saturating law does not describe them",
    )
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, (strain, stress + 15.0)])))
    check(found, r"1 of 4 curves do not start at stress 0 .*: specimen 'S3' starts at 15 MPa, 19 % of its peak")
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, (strain + 0.05, stress)])))
    check(found, "1 of 4 curves do not start at strain 0: specimen 'S3' starts at strain 0.05")
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, one(2011)])))
    check(found, "1 of 4 curves are thinned more than 10 times to 201 points: specimen 'S3' has 2011 points")
    doubled = [(x, y / 2) for x, y in [*good, one()]]
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", doubled)))
    check(found, "the fitted G0 is 0.5 times the given one", "gamma = 2 eps12")

    golden(warnings_of(tmp_path, several(tmp_path / "c.csv", [*good, one(a=33.0)])))
    shutil.rmtree(tmp_path / "out")
    message = not_imported(tmp_path, several(tmp_path / "c.csv", [*good, one(a=15.0)]), strict=True)
    check(
        message,
        r"c\.csv: 1 of 4 fitted curves have a fitted G0 or a outside .* \(an error with --strict, the first of 1\)",
    )


def test_noise_alone_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    """Estimates scatter out of the box at its edges; a curve that truly is outside is found in spite of its noise."""
    many = files.generated(400, noise_max_mpa=1.0)
    assert warnings_of(tmp_path, files.write_pair(tmp_path / "p", many), **UNITS, strict=True) == []

    noise = np.random.default_rng(2).normal(0, 0.3, 50)
    curves = [one(g0=2000.0 + k, a=30.0 + k) for k in range(3)] + [(one()[0], one(a=15.0)[1] + noise)]
    found = "\n".join(warnings_of(tmp_path, several(tmp_path / "c.csv", curves)))
    check(found, "1 of 4 fitted curves have a fitted G0 or a outside 1000 to 3000 MPa and 25 to 45")
