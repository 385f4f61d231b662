"""How many digits a number is worth: one rule for the page, the tables and the sentences.

The rule of the Particle Data Group (Review of Particle Physics 2018, Introduction 5.3), here for the ends of a 95 %
interval: an uncertainty whose leading digits are 100 to 354 keeps two of them, one of 355 to 949 keeps one, and the
number ends where its uncertainty ends. The uncertainty is the shorter arm of the interval, or a third of the longer
one where that is more. An end that would be printed as 0 or 1 without being it keeps one digit more, because it is
these that differences and ratios are judged against.
"""

import math

THIN = "\u202f"
"""A narrow space that does not break: between a number and its unit, and between thousands."""

MINUS = "\u2212"

DIGITS = 3
DIGITS_OF_THOUSANDS = 4
"""Significant digits of a number without an interval, and of one from a thousand on."""

_NO_WIDTH = 1e-9  # of the value: what is left of an interval by rounding
_TWO_DIGITS = 3.545  # an uncertainty that starts with less keeps two digits


def known(value: float | None) -> bool:
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
    """Return a number to so many decimals, with a true minus sign, its thousands apart, and no negative zero."""
    text = f"{round(value, decimals):,.{max(0, decimals)}f}".replace(",", THIN)
    return text.replace("-", MINUS if any(digit in text for digit in "123456789") else "")


def alone(value: float, digits: int = DIGITS) -> str:
    """Return a number without an interval: so many significant digits, from a thousand on one more than three."""
    return fixed(value, _digits(value, digits))


def _digits(value: float, digits: int = DIGITS) -> int:
    return significant(value, digits if abs(value) < 1000 else DIGITS_OF_THOUSANDS)


def quoted(value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.70 [1.66, 1.75]`; the number alone where there is no interval, empty where there is no number."""
    if value is None or not known(value):
        return ""
    if low is None or high is None or not (known(low) and known(high)):
        return alone(value)
    decimals = places(value, low, high)
    return f"{fixed(value, decimals)} [{fixed(low, decimals)}, {fixed(high, decimals)}]"
