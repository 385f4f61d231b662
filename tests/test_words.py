"""Nothing that a reader sees, and no name in the code, uses a word that docs/glossary.md says is not used."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGE = ROOT / "horovod_study"
PROSE = (
    *(*PACKAGE.rglob("*.j2"), *PACKAGE.rglob("*.js"), *PACKAGE.rglob("*.md"), *PACKAGE.rglob("*.yaml")),
    *(*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.md"), *(ROOT / "experiments").rglob("*.yaml")),
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
)


def not_used(heading: str) -> tuple[str, ...]:
    """Return the first cells of the table that follows a line of the glossary, one word or phrase each."""
    table = GLOSSARY.read_text(encoding="utf-8").partition(heading)[2].lstrip().partition("| not used |")[2]
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return tuple(word.strip(" `") for line in lines for word in line.split("|")[1].split(","))


WORDS = not_used("## Words that are not used")
NAMES = not_used("Names in the code:")
PATTERN = re.compile(rf"\b({'|'.join(re.escape(word) for word in WORDS)})\b", re.IGNORECASE)


def found_in(text: str) -> list[str]:
    return [match[0] for match in PATTERN.finditer(re.sub(r"\s+", " ", text))]


def texts(source: str) -> list[str]:
    """Return docstrings, strings (of f-strings what is not computed) and comments of a module."""
    tree = ast.parse(source)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [*strings, *(token.string for token in tokens if token.type == tokenize.COMMENT)]


def names(source: str) -> set[str]:
    """Return the names that a module defines: functions, classes, arguments and what it assigns to."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_the_glossary_says_which_words_are_not_used():
    assert {"foretold", "talk", "lies", "mend", "anew"} <= set(WORDS) and len(WORDS) > 20
    assert {"tell", "Look"} <= set(NAMES)
    assert found_in("Workers Talk by\nhand") == ["Talk", "by hand"] and found_in("families, talkative, amend") == []
    assert texts('"""a talk"""\nx = f"{y}mend"  # lies\n') == ["a talk", "mend", "# lies"]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_use_plain_words(path):
    source = path.read_text(encoding="utf-8")

    assert found_in("\0".join(texts(source))) == []  # no phrase runs over the end of a text
    assert not {name.lstrip("_") for name in names(source)} & set(NAMES)


@pytest.mark.parametrize("path", sorted(PROSE), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_and_docs_use_plain_words(path):
    text = path.read_text(encoding="utf-8")
    if path == GLOSSARY:
        text = text.partition("## Words that are not used")[0]

    assert found_in(text) == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_per_cent_has_one_spelling(path):
    """`{share:.0%}` prints 5%, all else 5 %."""
    assert re.findall(r":[-+\d.]*%\}", path.read_text(encoding="utf-8")) == []
