"""How many digits a number is worth: one rule for the page, the tables and the sentences.

The rule of the Particle Data Group (Review of Particle Physics 2018, Introduction 5.3), here for the ends of a 95 %
interval: an uncertainty whose leading digits are 100 to 354 keeps two of them, one of 355 to 949 keeps one, and the
number ends where its uncertainty ends. The uncertainty is the shorter arm of the interval, or a third of the longer
one where that is more. An end that would be printed as 0 or 1 without being it keeps one digit more, because it is
these that differences and ratios are judged against.
"""

import math
from typing import TypeGuard

THIN = "\u202f"
"""A narrow space that does not break: between a number and its unit, and between thousands."""

MINUS = "\u2212"

DIGITS = 3
_DIGITS_OF_THOUSANDS = 4
"""Significant digits of a number without an interval, and of one from a thousand on."""

_MOST_DECIMALS = 9
_NO_WIDTH = 1e-9  # of the value: what is left of an interval by rounding
_TWO_DIGITS = 3.545  # an uncertainty that starts with less keeps two digits


def known(value: float | None) -> TypeGuard[float]:
    """Return whether there is a number to print."""
    return value is not None and math.isfinite(value)


def places(value: float, low: float, high: float) -> int:
    """Return the decimals that an interval is worth; below zero where tens, hundreds, ... are uncertain."""
    near, far = sorted((abs(value - low), abs(high - value)))
    arm = max(near, far / 3)
    if arm <= _NO_WIDTH * abs(value):
        return _digits(value)
    power = math.floor(math.log10(arm))
    decimals = -power + (1 if arm / 10**power < _TWO_DIGITS else 0)
    hidden = any(end not in (0.0, 1.0) and round(end, decimals) in (0.0, 1.0) for end in (low, high))
    return decimals + 1 if hidden else decimals


def significant(value: float, digits: int = DIGITS) -> int:
    """Return the decimals that show so many significant digits; below zero for large numbers."""
    return digits - 1 if value == 0 else digits - 1 - math.floor(math.log10(abs(value)))


def fixed(value: float, decimals: int) -> str:
    """Return a number to so many decimals, with a true minus sign, its thousands apart, and no negative zero.

    Beyond _MOST_DECIMALS, as of the noise of an exact fit, it is `scientific`.
    """
    if decimals > _MOST_DECIMALS:
        return "0" if value == 0 else scientific(value)
    text = f"{round(value, decimals):,.{max(0, decimals)}f}".replace(",", THIN)
    return text.replace("-", MINUS if any(digit in text for digit in "123456789") else "")


def alone(value: float, digits: int = DIGITS) -> str:
    """Return a number without an interval: so many significant digits, from a thousand on one more than three."""
    return fixed(value, _digits(value, digits))


def _digits(value: float, digits: int = DIGITS) -> int:
    return significant(value, digits if abs(value) < 1000 else _DIGITS_OF_THOUSANDS)


def short_rate(value: float) -> str:
    """Return 4.7331e-4 for 0.00047331, and 0.05 as it is."""
    if not 0 < value < 0.01:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def quoted(value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.70 [1.66, 1.75]`; the number alone where there is no interval, empty where there is no number."""
    if known(value) and known(low) and known(high):
        return _bracketed(value, low, high, places(value, low, high))
    return alone(value) if known(value) else ""


def _bracketed(value: float, low: float, high: float, decimals: int) -> str:
    return f"{fixed(value, decimals)} [{fixed(low, decimals)}, {fixed(high, decimals)}]"


def number(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a number with the digits that its interval leaves certain; three digits without an interval."""
    if known(value) and known(low) and known(high):
        return fixed(value, _decimals(value, low, high))
    return alone(value) if known(value) else "unknown"


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.70 [1.66, 1.75]`, or the number alone where there is no interval."""
    if known(value) and known(low) and known(high):
        return _bracketed(value, low, high, _decimals(value, low, high))
    return number(value)


def with_unit(value: float | None, low: float | None, high: float | None, *, unit: str) -> str:
    """Return `9.1 ms [8.8, 9.5]`, or the number alone with its unit where there is no interval."""
    text, _, interval = with_interval(value, low, high).partition(" ")
    return f"{text}{THIN}{unit}{f' {interval}' if interval else ''}"


def _decimals(value: float, low: float, high: float) -> int:
    """Return the decimals that an interval is worth, but at most two above one: in a sentence nobody reads a third."""
    decimals = places(value, low, high)
    return decimals if abs(value) < 1 else min(decimals, 2)


def percent(value: float | None, *, decimals: int | None = None) -> str:
    """Return a share in per cent, in whole ones unless it is below one or `decimals` says otherwise."""
    if not known(value):
        return "unknown"
    if decimals is None:
        decimals = 1 if 0.0005 <= abs(value) < 0.0095 else 0
    return f"{fixed(100 * value, decimals)}{THIN}%"


def rounded(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits and its thousands apart."""
    if not known(value):
        return "unknown"
    return "0" if value == 0 else fixed(value, significant(value, digits))


def scientific(value: float | None, digits: int = 2) -> str:
    """Return 6.8e-5 for 0.000068, with a true minus sign and no zero at the end."""
    if not known(value):
        return "unknown"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").removesuffix(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}".replace("-", MINUS)


def milliseconds(seconds: float | None) -> str:
    """Return a time in ms, with three digits and at most two decimals, without the unit."""
    if not known(seconds):
        return "unknown"
    if abs(seconds) < 5e-7:
        return "0.00"
    decimals = 2 - math.floor(math.log10(abs(seconds * 1000)))
    return fixed(seconds * 1000, max(0, min(decimals, 2)))


def signed(text: str) -> str:
    """Return the text of a difference with its sign: `+0.3`, `\u22120.3`, and 0 without one."""
    return f"+{text}" if not text.startswith(MINUS) and any(digit in text for digit in "123456789") else text


def amount(size: float) -> str:
    """Return a number of bytes for people: '2.42 GB', '80 MB'."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.3g} bytes"


def prefixed(value: float, gap: str = " ") -> str:
    """Return 1.5 M for 1,500,000 and 300 k for 300,000."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{gap}{letter}"
    return f"{value:g}"
