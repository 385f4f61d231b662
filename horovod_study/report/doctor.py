"""The doctor's findings as lines of text, area after area, with the remedy below what is not well."""

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

_STYLES = {"ok": "green", "warning": "yellow", "fail": "bold red"}
_VERDICT_WIDTH = 7
_INDENT = 2


class _Diagnosis(Protocol):
    """What is drawn: horovod_study.cluster.doctor.Finding, or anything with its fields."""

    @property
    def area(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str:
        """ok, warning or fail."""

    @property
    def what(self) -> str: ...
    @property
    def remedy(self) -> str:
        """What to do; "" where nothing is to be done."""


def summary(findings: Sequence[_Diagnosis]) -> str:
    """Return '38 checks: 35 ok, 2 warnings, 1 fail'."""
    count = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _STYLES}
    parts = [f"{count['ok']} ok"]
    parts += [f"{count[word]} {word}{'' if count[word] == 1 else 's'}" for word in ("warning", "fail") if count[word]]
    return f"{len(findings)} check{'' if len(findings) == 1 else 's'}: {', '.join(parts)}"


def show(findings: Sequence[_Diagnosis], console: Console) -> None:
    """Print the findings: on a terminal coloured, and wrapped below their column; in a file one line each."""
    for text, column in _rows(findings):
        if console.is_terminal:
            for line in _wrapped(text, min(column, console.width // 2), console):
                line.rstrip()
                console.print(line, highlight=False, no_wrap=True)
        else:
            console.print(text, soft_wrap=True, highlight=False)


def _rows(findings: Sequence[_Diagnosis]) -> list[tuple[Text, int]]:
    """Return the lines, and the column at which what follows a break of each begins."""
    width = min(22, max((len(finding.name) for finding in findings), default=0))
    rows: list[tuple[Text, int]] = []
    for area in dict.fromkeys(finding.area for finding in findings):
        rows.append((Text(area, style="bold"), 0))
        for finding in findings:
            if finding.area != area:
                continue
            row = Text(" " * _INDENT)
            row.append(f"{finding.verdict:<{_VERDICT_WIDTH}}", style=_STYLES[finding.verdict])
            row.append(f"  {finding.name:<{width}}  {finding.what}")
            rows.append((row, _INDENT + _VERDICT_WIDTH + 2 + width + 2))
            if finding.remedy:
                remedy = f"{' ' * (_INDENT + _VERDICT_WIDTH + 2)}-> "
                rows.append((Text(f"{remedy}{finding.remedy}"), len(remedy)))
    return [*rows, (Text(""), 0), (Text(summary(findings)), 0)]


def _wrapped(text: Text, column: int, console: Console) -> list[Text]:
    """Return a text in lines that fit the terminal, the later ones beginning at `column`."""
    if text.cell_len <= console.width:
        return [text]
    first, *rest = text.wrap(console, console.width)
    more = Text(" ").join(line.copy() for line in rest)
    return [first, *(Text(" " * column) + line for line in more.wrap(console, console.width - column))]
