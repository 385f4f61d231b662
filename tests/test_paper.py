"""The section for a thesis: it stands alone, compiles, and has the numbers of the page."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from make.synthetic_runs import run_table

from horovod_study import cli
from horovod_study.analysis.study import Analysis, analyze
from horovod_study.report import export as paper
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.grammar import write_files
from horovod_study.report.kit.files import latex
from horovod_study.report.page.tables import sentences

pytestmark = pytest.mark.slow

SOURCE = {
    "versions": {"horovod_study": "0.1.0", "numpy": "2.0"},
    "run_files": {"one_run & more": {"run.json": "ab" * 16, "steps-00000.arrows": "cd" * 16}},
}
EVIL = "50% of my_study & #1 \\input{x}"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    found = analyze(run_table((1, 2, 4)))
    return replace(found, provenance={**found.provenance, "studies": [EVIL]})


@pytest.fixture(scope="module")
def folder(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    write_files([each for each in drawings(analysis) if each.name in paper.FIGURES], directory / "figures")
    paths = paper.write_paper(analysis, directory, SOURCE)
    shutil.rmtree(directory / "figures")  # the folder stands alone
    assert all(path.is_file() for path in paths)
    return paths[0].parent


def text_of(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.rglob("*.tex")))


def test_everything_that_is_named_is_there(folder: Path) -> None:
    text = text_of(folder)
    cited = set(re.findall(r"\\cite\{(\w+)\}", text))
    assert cited and cited == set(re.findall(r"^@\w+\{(\w+),", (folder / "references.bib").read_text(), re.MULTILINE))
    labels = set(re.findall(r"\\label\{([\w:]+)\}", text))
    assert set(re.findall(r"\\ref\{([\w:]+)\}", text)) <= labels
    files = re.findall(r"\\(?:input|includegraphics\[[^]]*\])\{\\hspaperfolder/([\w/.]+)\}", text)
    assert {"figures/speedup.pdf", "tables/points", "tables/environment"} <= set(files)
    assert all((folder / (name if name.endswith(".pdf") else f"{name}.tex")).is_file() for name in files)


def test_the_sentences_are_those_of_the_page(analysis: Analysis, folder: Path) -> None:
    text = (folder / "section.tex").read_text()
    for paragraph in sentences(analysis):
        assert latex(" ".join(paragraph)) in text
    for doubt in analysis.provenance["doubts"]:
        assert f"\\item {latex(doubt)}" in text


def test_the_method_counts_the_runs_and_says_where_repeats_and_steps_are(analysis: Analysis, folder: Path) -> None:
    text = (folder / "section.tex").read_text()
    method = text[text.index("\\subsection{Method}") : text.index("\\subsection{Results}")]
    assert "tab:measurement" in method and (folder / "tables" / "measurement.tex").is_file()
    assert f"{analysis.provenance['runs']['done']} runs" in method


@pytest.mark.parametrize("other", ["--check", "--tables"])
def test_options_that_write_no_page_exclude_it(other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path), "--paper", other]) == 2
    said = capsys.readouterr().err
    assert "--paper" in said and other in said and said.count("\n") == 1


def test_it_compiles_whatever_a_study_is_called(folder: Path, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None or shutil.which("bibtex") is None:
        pytest.skip("pdflatex is not installed (texlive-latex-recommended): no section is compiled")
    shutil.copytree(folder, tmp_path / "paper")
    log = ""
    for command in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        options = ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"] if command == "pdflatex" else []
        done = subprocess.run(
            [command, *options, "paper"],
            cwd=tmp_path / "paper",
            env={**os.environ, "max_print_line": "1000"},
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert done.returncode == 0, done.stdout[-3000:]
        log = done.stdout
    assert re.findall(r"LaTeX Warning.*", log) == []
    assert (tmp_path / "paper" / "paper.pdf").stat().st_size > 10_000
