"""The rate that a program's output says, in the words that trainings usually have for it.

The median of the last half of the values counts, because the first steps are slow: of samples before steps, of all
workers before one of them, and of what is said most often.
"""

import re
from collections.abc import Iterator, Sequence
from statistics import median

_NUMBER = (
    r"(?P<{0}>(?>(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?))"
    r"(?:\s?(?P<{0}_unit>(?-i:[kKMG]))(?=\s|[a-z]*\b/|tok|$))?"
)
_SAMPLE = r"(?:samples?|images?|imgs?|examples?|tokens?|toks?|sentences?|sequences?|seqs?|words?|frames?|items?)"
_STEP = r"(?:it|its|iter|iters|iterations?|steps?|batch|batches|updates?|global_steps?)"
_PER_S = r"\s?(?:/|\bper\b|_per_|per)\s?s(?:ec(?:ond)?s?)?(?![a-rt-z])"
_NO_RATE = r"(?!\s*(?:[kMGT]?i?B\b|[kMGT]?bits?|[kMGTP]?FLOP|m?s\b|%|\w*\]))"
# Total img/sec on 4 GPU(s): 812.3; 'train_samples_per_second': 97.1; throughput = 1.2k; wps=21345
_LABELLED = (
    rf"(?P<label>(?:{_SAMPLE}{_PER_S}|(?P<label_step>{_STEP}{_PER_S})|throughput|\b[wif]ps\b)[\w ()/]{{0,24}}?)['\"]?"
    rf"\s?(?:[:=]|\bis\b|(?<=wps) )\s*{_NUMBER.format('a')}{_NO_RATE}"
)
# 512.3 images/sec per GPU, 9.87it/s, 1040.32/s
_AFTER = rf"{_NUMBER.format('b')}\s?(?P<unit>(?P<step>{_STEP})?{_PER_S}|{_SAMPLE}{_PER_S})"
# 12ms/step, 86us/sample, 1.5s/it
_TIME = rf"{_NUMBER.format('c')}\s?(?P<prefix>(?-i:[mun]?))s/(?P<of>{_STEP}|{_SAMPLE})\b"
_FORMS = re.compile(f"{_LABELLED}|{_AFTER}|{_TIME}", re.IGNORECASE)
_UNIT = re.compile(rf"\s?(?:[kKMG]\s?)?({_SAMPLE}{_PER_S})", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TOTAL = re.compile(r"(?<![a-z])(?:total|global|all)(?![a-z])[\w -]{0,12}$", re.IGNORECASE)
_ONE_OF_SEVERAL = re.compile(r"\s*(?:per|/)[ _]?(?:gpu|device|worker|rank|replica|core|chip)", re.IGNORECASE)
_NO_TRAINING = re.compile(r"(?:^|[^a-z])(?:eval|valid|val|test|infer|predict)", re.IGNORECASE)
_COUNT = re.compile(r"-np?|--np|--ntasks|--(?:nproc[-_]per[-_]node|num[-_](?:processes|proc|gpus))")
"""Options of launchers that say how many workers they start."""
_SCRIPTS = (".py", ".sh", ".bash", ".ipynb", ".jl", ".R")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def rate_said(text: str, pattern: str | None = None, workers: int = 1) -> tuple[float, str] | None:
    """Return the rate per second that an output says, of all `workers`, and in which words; None where it says none.

    `pattern`: a regular expression whose first group is the number, in place of the usual words.
    """
    lines = re.split(r"[\r\n\b]+", _CONTROL.sub("", text))
    if pattern is not None:
        told = [found[1] for line in lines for found in re.finditer(pattern, line)]
        values = [value for each in told if (value := _number(each)) > 0]
        return (rate := median(values[len(values) // 2 :]), f"{rate:g} by --rate") if values else None
    said = [each for line in lines for each in _said(line) if each[2] > 0]
    if not said:
        return None
    best = max(said)[0]
    forms = [form for preferred, form, _, _ in said if preferred == best]
    most = max(dict.fromkeys(forms), key=forms.count)
    chosen = [(value, one) for preferred, form, value, one in said if (preferred, form) == (best, most)]
    rate = median(value for value, _ in chosen[len(chosen) // 2 :])
    if chosen[0][1] and workers > 1:
        return rate * workers, f"{workers} x {rate:g} {most}"
    return rate, f"{rate:g} {most}"


def _said(line: str) -> Iterator[tuple[tuple[bool, bool, bool, bool], str, float, bool]]:
    """Yield each rate of a line: how it is preferred, its words, its value, and whether it is of one of several.

    Preferred is what is of training, of samples, of all workers, and said to be so.
    """
    for found in _FORMS.finditer(line):
        part = "a" if found["label"] else "b" if found["unit"] else "c"
        value = _number(found[part]) * _TIMES[found[f"{part}_unit"] or found["prefix"] or ""]
        value = 1 / value if found["of"] and value else value
        before, after = line[: found.start()], line[found.end() :]
        form = " ".join((found["label"] or found["unit"] or f"{found['of']}s/s").split()).strip("_-# ")
        one = bool(_ONE_OF_SEVERAL.search(form) or _ONE_OF_SEVERAL.match(after))
        if found["label"] and (unit := _UNIT.match(after)):  # Throughput: 512.3 images/sec
            form = unit[1]
        steps = found["label_step"] or found["step"] or (found["of"] and re.fullmatch(_STEP, found["of"], re.I))
        form += " per GPU" if one and not _ONE_OF_SEVERAL.search(form) else ""
        total = bool(found["label"] and not one and _TOTAL.search(before))
        form = f"total {form}" if total else form
        if "flop" not in form.lower():
            yield (not _NO_TRAINING.search(before), not steps, not one, total), form, value, one


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def said_workers(command: Sequence[str]) -> int:
    """Return the worker count that a command says to its launcher; 1 where it says none."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if word.endswith(_SCRIPTS):  # what follows is its own
            break
        if _COUNT.fullmatch(option) and (value if equals else following).isdecimal():
            return max(1, int(value if equals else following))
    return 1
