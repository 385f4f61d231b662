"""Text files as spreadsheets and testing machines write them: delimiters, decimal marks, names, units, preambles."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import curve_files as files
from make.wording import Golden

from horovod_study.errors import DataError
from horovod_study.workload.curves import ReadOptions, read_curves, units
from horovod_study.workload.curves.text_table import is_number, to_number

UNITS = {"strain_unit": "1", "stress_unit": "MPa"}
STRAIN = np.linspace(0, 0.15, 40)
STRESS = (2000 / 30 * -np.expm1(-30 * STRAIN)).round(4)


def table(
    header: str, *, delimiter: str = ",", decimal: str = ".", row: str = "{x}{d}{y}", percent: bool = False
) -> str:
    """A table of one curve; `row` places strain {x}, stress {y} and the delimiter {d}."""
    lines = [header] if header else []
    for x, y in zip((STRAIN * (100 if percent else 1)).round(8).tolist(), STRESS.tolist(), strict=True):
        lines.append(row.format(x=f"{x:.8f}".replace(".", decimal), y=f"{y:.4f}".replace(".", decimal), d=delimiter))
    return "\n".join(lines) + "\n"


def read(folder: Path, content: str | bytes, name: str = "c.csv", **options: object) -> object:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    curves = read_curves(folder / name, ReadOptions(**{**UNITS, **options}))  # type: ignore[arg-type]
    assert curves.strain[0] == pytest.approx(STRAIN, abs=1e-7)
    assert curves.stress[0] == pytest.approx(STRESS, abs=1e-3)
    return curves


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("decimal", [".", ","])
def test_delimiter_and_decimal_are_found(tmp_path: Path, delimiter: str, decimal: str) -> None:
    quote = '"' if delimiter == decimal else ""
    row = f"{quote}{{x}}{quote}{{d}}{quote}{{y}}{quote}"
    read(tmp_path, table(f"strain{delimiter}stress", delimiter=delimiter, decimal=decimal, row=row))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_and_line_ends(tmp_path: Path, newline: str, encoding: str) -> None:
    content = ("Prüfung: groß\n\n" + table("strain,stress") + "\n\n").replace("\n", newline)
    curves = read(tmp_path, content.encode(encoding))

    notes = curves.warnings  # type: ignore[attr-defined]
    assert notes == (("text read as Windows-1252, for it is not UTF-8",) if encoding == "cp1252" else ())


@pytest.mark.parametrize(
    "header",
    [
        "strain,stress", "STRAIN,STRESS", "Eps,Sigma", "epsilon,sig", "gamma,tau", "e_true,Sigma_true", "E,STRESS",
        "Shear Strain,shear_stress", "Dehnung,Spannung", "Scherung,Schubspannung", "Gleitung,Schubspannung",
        '"strain" , "stress"',         "\u03b3,\u03c4", "\u03b5,\u03c3",
    ],
)  # fmt: skip
def test_names_of_columns(tmp_path: Path, header: str) -> None:
    read(tmp_path, table(header))


@pytest.mark.parametrize(
    ("strain", "percent"),
    [
        ("strain (%)", True), ("strain [%]", True), ("strain_%", True), ("strain_percent", True), ("Strain %", True),
        ("Dehnung in %", True), ("Dehnung / %", True), ("strain, %", True), ("strain (mm/mm)", False),
        ("strain [-]", False), ("strain (in/in)", False), ("strain_mm_mm", False),
        ("strain mm/mm", False), ("strain [1]", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "stress", ["stress (MPa)", "Stress_MPa", "stress [N/mm2]", "STRESS_MPA", "stress [N/mm\u00b2]", "stress in MPa"]
)
def test_units_in_names(tmp_path: Path, strain: str, percent: bool, stress: str) -> None:
    content = table(f'"{strain}",{stress}', percent=percent)
    curves = read(tmp_path, content, strain_unit=None, stress_unit=None)

    assert curves.units == {"strain": "%" if percent else "1", "stress": "MPa"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", ["(%),(MPa)", "%,MPa", "[%],[N/mm2]"])
def test_a_row_of_units(tmp_path: Path, row: str) -> None:
    curves = read(tmp_path, table(f"Strain,Stress\n{row}", percent=True), strain_unit=None, stress_unit=None)

    assert curves.layout == "machine"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "unit", "factor"),
    [
        ("strain", "1", 1.0), ("strain", "%", 0.01), ("strain", "mm/m", 1e-3), ("strain", "microstrain", 1e-6),
        ("stress", "MPa", 1.0), ("stress", "Pa", 1e-6), ("stress", "kPa", 1e-3), ("stress", "GPa", 1e3),
        ("stress", "psi", 0.00689475729), ("stress", "ksi", 6.89475729),
    ],
)  # fmt: skip
def test_every_unit(tmp_path: Path, kind: str, unit: str, factor: float) -> None:
    x, y = (STRAIN / factor, STRESS) if kind == "strain" else (STRAIN, STRESS / factor)
    rows = [f"{a!r},{b!r}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    given = {f"{kind}_unit": unit}

    assert units.factor(kind, unit) == pytest.approx(factor, rel=1e-8)
    read(tmp_path, "\n".join(["strain,stress", *rows]), **given)


def test_machine_export_with_thousands(tmp_path: Path) -> None:
    """Preamble, names, units, quotes, thousands separators: each left out line and each such cell is counted."""
    rows = [f'"{k}","{100 * x:.6f}","{1000 * y:,.3f}"' for k, (x, y) in enumerate(zip(STRAIN, STRESS, strict=True))]
    head = ["Test method,a.im_tens", '"Width","12.5","mm"', "Limits,1.5,2.5", "", "Time,Strain,Stress", "(s),(%),(kPa)"]
    curves = read(tmp_path, "\r\n".join([*head, *rows]), strain_unit=None, stress_unit=None)

    assert curves.layout == "machine"  # type: ignore[attr-defined]
    assert curves.counts["lines above the table"] == 4  # type: ignore[attr-defined]
    assert curves.counts["cells with thousands separators"] == (STRESS >= 1).sum()  # type: ignore[attr-defined]


def test_extra_columns_are_listed(tmp_path: Path, golden: Golden) -> None:
    curves = read(tmp_path, table("Cycle,Stress_MPa,Load,strain", row="1{d}{y}{d}7{d}{x}"), stress_unit=None)

    golden(curves.warnings)  # type: ignore[attr-defined]
    assert curves.ids == ("c",)  # type: ignore[attr-defined]


def test_dates_and_remarks_do_not_disturb(tmp_path: Path, golden: Golden) -> None:
    content = table("date,strain,stress,remark", row="2024-01-02 10:00:00{d}{x}{d}{y}{d}S 1 2; ok")
    golden(read(tmp_path, content).warnings)  # type: ignore[attr-defined]


def test_columns_by_option(tmp_path: Path, golden: Golden) -> None:
    content = table("strain,e,F_kN,sigma_nom,stress", row="7{d}{x}{d}3{d}{y}{d}9")
    read(tmp_path, content, strain_column="E", stress_column="sigma_nom")
    read(tmp_path, table(""), strain_column="1", stress_column="2")
    with golden.raises(DataError, match="--strain-column.*--stress"):
        read(tmp_path, table(""))
    read(tmp_path, table("first,second"), strain_column="first", stress_column="Second")


def test_options_overrule_what_would_be_found(tmp_path: Path) -> None:
    rows = "\n".join(f"{k};{k},{k + 500:03}" for k in range(1, 30))
    (tmp_path / "c.csv").write_text("gamma [microstrain];tau [Pa]\n" + rows)
    values = {}
    for decimal in (".", ","):
        curves = read_curves(tmp_path / "c.csv", ReadOptions(decimal=decimal, delimiter="semicolon", any_modulus=True))
        values[decimal] = curves.stress[0][0] * 1e6
    assert values == {".": pytest.approx(1501), ",": pytest.approx(1.501)}


def test_specimens_by_any_name(tmp_path: Path) -> None:
    for name in ("specimen", "Test_ID", "Probe", "SAMPLE", "specimen id"):
        content = table(f"{name},strain,stress", row="A 1{d}{x}{d}{y}")
        assert read(tmp_path, content).ids == ("A 1",)  # type: ignore[attr-defined]


def test_wide_tables(tmp_path: Path) -> None:
    for header in ("A-1_strain,A-1_stress", "Strain A-1,Stress A-1", "A-1 Dehnung (1),A-1 Spannung (MPa)"):
        curves = read(tmp_path, table(header))
        assert (curves.layout, curves.ids) == ("wide", ("A-1",))  # type: ignore[attr-defined]
    assert read(tmp_path, table("strain_1,stress_1")).ids == ("1",)  # type: ignore[attr-defined]


def test_kinds_of_strain_are_no_specimens(tmp_path: Path, golden: Golden) -> None:
    content = table("true strain,true stress,engineering strain,engineering stress", row="1{d}1{d}{x}{d}{y}")
    with golden.raises(DataError, match="--strain-col"):
        read(tmp_path, content)
    read(tmp_path, content, strain_column="Engineering Strain", stress_column="engineering stress")


def test_a_folder_in_the_order_of_its_files(tmp_path: Path) -> None:
    """Numbers in names count as numbers: test 10 comes after test 9."""
    for k in range(1, 12):
        (tmp_path / f"test{k}.txt").write_text(table("strain,stress"))
    (tmp_path / "notes.md").write_text("not a curve")
    assert read_curves(tmp_path, ReadOptions(**UNITS)).ids == tuple(f"test{k}" for k in range(1, 12))
    (tmp_path / "info.csv").write_text("test_id,machine\n" + "".join(f"test{k},M\n" for k in range(11, 0, -1)))
    assert read_curves(tmp_path, ReadOptions(**UNITS)).ids[0] == "test11"


def test_targets_in_a_second_table_may_be_german(tmp_path: Path, golden: Golden) -> None:
    tests = files.generated()
    rows = [
        f"{name};{g0:.3f};{a:.3f}".replace(".", ",") for name, (g0, a) in zip(tests.names, tests.targets, strict=True)
    ]
    (tmp_path / "targets.csv").write_text("\r\n".join(["Probe;G0 (MPa);a", *rows[::-1]]))
    wide = files.write_wide(tmp_path / "w.csv", tests)
    curves = read_curves(wide, ReadOptions(targets=tmp_path / "targets.csv"))

    assert curves.targets == pytest.approx(tests.targets)
    (tmp_path / "targets.csv").write_text("Probe,G0,b\nP01,1000,2\n")
    with golden.raises(DataError, match=r"targets\.csv.*line 1.*Probe.*G0"):
        read_curves(wide, ReadOptions(targets=tmp_path / "targets.csv"))


def test_quoted_cells_over_several_lines_keep_line_numbers(tmp_path: Path) -> None:
    lines = table("strain,stress,remark", row="{x}{d}{y}{d}").splitlines()
    lines[3] += '"two\nlines"'
    lines[9] = "0.03,oops,"
    (tmp_path / "c.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 11: 'stress' is 'oops'"):
        read_curves(tmp_path / "c.csv", ReadOptions(**UNITS))


@given(
    value=st.decimals(min_value=-(10**9), max_value=10**9, places=3),
    decimal=st.sampled_from(".,"),
    grouped=st.booleans(),
)
def test_numbers_are_read_as_written(value: object, decimal: str, grouped: bool) -> None:
    text = f"{value:,f}" if grouped else f"{value:f}"
    if decimal == ",":
        text = text.translate(str.maketrans(",.", ".,"))

    assert is_number(text, decimal)
    assert to_number(text, decimal) == float(str(value))


@pytest.mark.parametrize(
    ("cell", "point", "comma"),
    [
        ("1", True, True), ("-1.5e-3", True, False), ("1,5", False, True), ("1,234", True, True),
        ("0,123", False, True), ("1.234.567,8", False, True), ("1,234,567.8", True, False), ("12,34.5", False, False),
        (".5", True, False),
        ("1.", True, False), ("", False, False), ("1 234.5", True, False), ("1_000", False, False), ("x", False, False),
        ("01.02.2024", False, False), ("1'234.5", True, False), ("12:30", False, False), ("--1", False, False),
    ],
)  # fmt: skip
def test_what_is_a_number(cell: str, point: bool, comma: bool) -> None:
    assert (is_number(cell, "."), is_number(cell, ",")) == (point, comma)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("Stress_MPa", ("stress", "MPa")), ("Shear Strain (%)", ("shear strain", "%")), ("e_true", ("e true", None)),
        ("strain_1", ("strain 1", None)), ("s1_strain [1]", ("s1 strain", "1")), ("tau", ("tau", None)),
        ("Spannung / MPa", ("spannung", "MPa")), ("stress ()", ("stress", None)), ("strain_mm_mm", ("strain", "mm_mm")),
    ],
)  # fmt: skip
def test_names_and_units_are_told_apart(column: str, expected: tuple[str, str | None]) -> None:
    assert units.split(column) == expected
