"""The commands that the pages show: found in their blocks of code, as somebody would type them."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(page for page in ROOT.glob("*/README.md") if not page.parent.name.startswith(".")),
        *(ROOT / "benchmarks").glob("*/README.md"),
    )
)

FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2 *$", flags=re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console")
PROGRAMS = r"(?:\.venv/bin/)?(?:horovod-study|horovodrun|mpirun|torchrun|srun|nsys|taskset|python3?|pip|make)"
STARTS = re.compile(rf"(?:\$ )?{PROGRAMS}\s")
COMMENT = re.compile(r"\s+#|\s{3,}")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks whose language is `kind`; "" is none."""
    return [match[4] for match in FENCE.finditer(text) if match[3].strip() == kind]


def commands(text: str) -> list[str]:
    """Every command of a page: what follows a prompt, else every line of a shell's block, else what looks like one.

    Lines joined by && ; & are several. The path of the environment, comments and what is done with the output are
    left out. A block that begins with #! is a file.
    """
    lines: list[str] = []
    for match in FENCE.finditer(text):
        inside = re.sub(r"\s*\\\n\s*", " ", match[4]).splitlines()
        prompted = [line[2:] for line in inside if line.startswith("$ ")]
        if prompted:
            lines += prompted
        elif match[3].strip() in SHELLS and not inside[0].startswith("#!"):
            lines += [line for line in inside if not line.startswith("#")]
        elif not match[3].strip():
            lines += [line for line in inside if STARTS.match(line)]
    outside = FENCE.sub("", text)
    lines += [
        line[4:].removeprefix("$ ") for line in outside.splitlines() if re.match(rf" {{4}}{STARTS.pattern}", line)
    ]
    parts = [part for line in lines for part in re.split(r" && | ; | & ", COMMENT.split(line.strip())[0])]
    return [part.replace(".venv/bin/", "").strip() for part in parts if part.strip() not in ("", "wait")]


def words_of(command: str) -> list[str]:
    """Words that the program is given, also behind a launcher; the trainer's begin with `strain train`."""
    words = shlex.split(re.split(r" > | \| ", command)[0])
    if "horovod-study" in words:
        return words[words.index("horovod-study") + 1 :]
    if "horovod_study.train" in words:
        return ["strain", "train", *words[words.index("horovod_study.train") + 1 :]]
    return []


def inline(text: str) -> list[list[str]]:
    """Words of each `horovod-study VERB ...` and `make TARGET` in the prose of a page."""
    prose = FENCE.sub("", text)
    found = [code.replace(".venv/bin/", "").split() for code in INLINE.findall(prose)]
    return [words for words in found if words[:1] in (["horovod-study"], ["make"]) and len(words) > 1]
