"""Units of strain and stress, and the names by which columns are known.

Strain becomes a ratio and stress MPa by one factor each. A unit is in round or square brackets, after an
underscore, a slash or the word "in", in a row below the names, or in an option; there is no default.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from horovod_study.errors import DataError, nearest

STRAIN = MappingProxyType({"1": 1.0, "%": 1e-2, "mm/m": 1e-3, "microstrain": 1e-6})
"""Strain units and what one of them is as a ratio."""

STRESS = MappingProxyType(
    {"MPa": 1.0, "Pa": 1e-6, "kPa": 1e-3, "GPa": 1e3, "psi": 0.006894757293168361, "ksi": 6.894757293168361}
)
"""Stress units and what one of them is in MPa."""

_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("1", "-", "mm/mm", "in/in", "m/m", "mm_mm", "in_in", "m_m", "ratio"), "1"),
        **dict.fromkeys(("%", "percent", "pct", "prozent"), "%"),
        **dict.fromkeys(("mm/m", "mm_m", "permille", "promille", "\u2030"), "mm/m"),
        **dict.fromkeys(
            (
                *("microstrain", "ustrain", "\u00b5strain", "\u03bcstrain", "um/m", "\u00b5m/m", "\u03bcm/m", "um_m"),
                *("\u00b5\u03b5", "\u03bc\u03b5", "\u00b5e", "ue"),
            ),
            "microstrain",
        ),
        **dict.fromkeys(("mpa", "n/mm2", "n/mm\u00b2", "n/mm^2", "n/mm**2", "n_mm2", "megapascal"), "MPa"),
        **dict.fromkeys(("pa", "n/m2", "n/m\u00b2", "n/m^2", "pascal"), "Pa"),
        "kpa": "kPa",
        "gpa": "GPa",
        "psi": "psi",
        "ksi": "ksi",
    }
)
_LISTS = MappingProxyType(
    {
        "strain": "1 (also mm/mm, in/in), %, mm/m, microstrain",
        "stress": "MPa (also N/mm2), Pa, kPa, GPa, psi, ksi",
    }
)
_KINDS: Mapping[str, Mapping[str, float]] = MappingProxyType({"strain": STRAIN, "stress": STRESS})

NAMES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "strain": frozenset(
            ("strain", "eps", "epsilon", "e", "e true", "gamma", "shear strain", "dehnung", "scherung", "gleitung")
        )
        | {"\u03b5", "\u03b3"},
        "stress": frozenset(
            ("stress", "sigma", "sig", "tau", "sigma true", "shear stress", "spannung", "schubspannung")
        )
        | {"\u03c3", "\u03c4"},
        "specimen": frozenset(
            ("specimen", "specimen id", "specimen name", "test id", "test", "sample", "sample id", "id", "probe")
        ),
        "time": frozenset(("time", "t", "zeit", "test time", "elapsed time", "pr\u00fcfzeit")),
        "g0": frozenset(("g0", "g 0")),
        "a": frozenset(("a",)),
    }
)
"""Accepted names of columns, in lower case, an underscore as a space."""


KINDS_OF_CURVE = frozenset(
    ("true", "engineering", "nominal", "technical", "tensile", "compressive", "axial", "transverse", "longitudinal")
) | frozenset(("plastic", "elastic", "total", "raw", "corrected", "rate", "wahre", "technische"))
"""Words beside 'strain' or 'stress' that name no specimen: such columns are no pairs of a wide table."""


def accepted(kind: str) -> str:
    """Return the accepted names of a column as text."""
    return ", ".join(sorted(name for name in NAMES[kind] if name.isascii()))


def find(text: str) -> str | None:
    """Return the unit that `text` means, None if it means none; millipascal (mPa) is none of ours."""
    plain = text.strip().replace(" ", "")
    return None if plain == "mPa" else _WORDS.get(plain.lower())


def required(where: str, text: str, kind: str) -> str:
    """Return the unit of `kind` (strain or stress) that `text` means; raise DataError where it means none."""
    unit = find(text)
    if unit is None or unit not in _KINDS[kind]:
        meant = _WORDS.get(text.strip().lower())  # millipascal was meant as MPa, but it is not said
        words = [*_KINDS[kind], *(word for word, each in _WORDS.items() if each in _KINDS[kind])]
        close = f" (did you mean {meant!r}?)" if meant in _KINDS[kind] else nearest(text, words)
        raise DataError(f"{where} {text!r} is no unit of {kind}{close}; allowed: {_LISTS[kind]}")
    return unit


def factor(kind: str, unit: str) -> float:
    """Return what one `unit` is as a ratio of strain or in MPa."""
    return _KINDS[kind][unit]


def settle(where: str, kind: str, in_file: str | None, option: str | None) -> str:
    """Return the unit of a channel from its two possible declarations (case 13: none, or two that differ).

    `in_file` is the text of the file, `option` a known unit, which also stands for a text that is no unit at all.
    """
    declared = None
    if in_file is not None and (option is None or find(in_file)):
        declared = required(f"{where}: the unit of {kind} in the file,", in_file, kind)
    if declared and option and declared != option:
        raise DataError(
            f"{where}: the file gives {kind} in {declared}, --{kind}-unit says {option}; leave the option out, or "
            "correct the file"
        )
    unit = declared or option
    if unit is None:
        raise DataError(
            f"{where}: the unit of {kind} is not declared; give --{kind}-unit, one of {_LISTS[kind]}, or write it "
            f"behind the name of the column as in '{'strain (%)' if kind == 'strain' else 'stress (MPa)'}'"
        )
    return unit


_BRACKETS = re.compile(r"^(?P<name>.*?)\s*[(\[]\s*(?P<unit>[^()\[\]]*?)\s*[)\]]\s*$")
_SPACED = re.compile(r"^(?P<name>.*?)(?:\s+/\s+|\s+in\s+|\s*,\s+|\s+)(?P<unit>\S+)\s*$", re.IGNORECASE)


def split(column: str) -> tuple[str, str | None]:
    """Return (plain name, text of the unit or None) of a column: 'Shear_Strain (%)' gives ('shear strain', '%')."""
    text = column.strip()
    bracket = _BRACKETS.match(text)
    if bracket:
        return plain(bracket["name"]), bracket["unit"] or None
    # Behind an underscore or a space only a known unit is one; a bare 1 is the number of a specimen there.
    pieces = text.split("_")
    for count in (2, 1):
        unit = "_".join(pieces[-count:])
        if len(pieces) > count and unit != "1" and find(unit):
            return plain("_".join(pieces[:-count])), unit
    spaced = _SPACED.match(text)
    if spaced and spaced["unit"] not in ("1", "-") and find(spaced["unit"]):
        return plain(spaced["name"]), spaced["unit"]
    return plain(text), None


def plain(name: str) -> str:
    """Return a column's name in lower case, single spaces for underscores and runs of blanks."""
    return re.sub(r"[\s_]+", " ", name).strip().lower()
