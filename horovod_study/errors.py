"""The errors a user can cause, as one small family.

    StudyError            wrong use or bad input: one line saying what, where, what is allowed, what to do next
    |- ConfigError        an option, a YAML key or a combination of them
    |- DataError          a data set, a points file or a curve file
    |- RecordError        a run directory that cannot be read or must not be written
    |- BackendError       a backend or transport that is not there, or ranks that disagree
    `- AnalysisError      recorded runs or points that do not support what was asked

The command line prints the message of a StudyError and exits with code 2.
Everything else is a bug and traces back.
"""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any


class StudyError(Exception):
    """Wrong use or bad input, described in one line that ends with what to do next."""


class ConfigError(StudyError):
    """An option, a YAML key, or a combination of them is not valid."""


class DataError(StudyError):
    """A data file is missing, damaged, of another version, or not what it says."""


class RecordError(StudyError):
    """A run directory cannot be read, or must not be overwritten."""


class BackendError(StudyError):
    """A backend or transport is not available, or the ranks of a run disagree."""


class AnalysisError(StudyError):
    """The recorded runs or points do not support the analysis that was asked for."""


def first_line(error: BaseException) -> str:
    """Return the first line of what a library says, the kind of error where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def error_line(error: BaseException) -> str:
    """Return an error in one line: of this package its text, of others their kind before it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, StudyError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean ...?)' for the closest of `allowed`, or '' when nothing is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def short(value: Any) -> str:
    """Return a value for a message, however large it is."""
    cut = reprlib.Repr()
    cut.maxstring = cut.maxother = 60
    cut.maxlong, cut.maxdict, cut.maxlist, cut.maxlevel = 24, 2, 2, 2
    return cut.repr(value).replace("\n", " ")  # such as that of a tensor


def refuse(source: str, *rules: tuple[object, str], error: type[StudyError] = ConfigError) -> None:
    """Raise `error` with the text of the first rule whose first part is true: what must not be, and what to say."""
    for broken, text in rules:
        if broken:
            raise error(f"{source}: {text}" if source else text)
