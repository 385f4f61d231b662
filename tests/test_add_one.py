"""What one more of a kind takes: an invented one is added to a copy of the package, in as few files as it may."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import horovod_study

PACKAGE = Path(horovod_study.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package in a folder of its own."""
    shutil.copytree(PACKAGE, tmp_path / "copy" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy" / PACKAGE.name


def said(copy: Path, *words: str) -> str:
    """Return what the copied package says."""
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=copy.parent, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def study(copy: Path, sweep: dict[str, object]) -> Path:
    path = copy.parent / "study.yaml"
    content = {"study": "s", "baselines": ["plain"], "run": {"dataset": "400", "steps": 3}, "sweep": sweep}
    path.write_text(yaml.safe_dump(content))
    return path


def cells(copy: Path, sweep: dict[str, object]) -> list[dict[str, object]]:
    plan = json.loads(said(copy, "-m", "horovod_study.cli", "run", str(study(copy, sweep)), "--plan", "--json"))
    return list(plan["cells"])


@pytest.mark.slow
def test_an_option_takes_its_declaration_and_where_it_is_used(copy: Path) -> None:
    """The declaration alone makes it an option, a key, a column, and something that is swept, compared and tuned."""
    config = copy / "strain" / "options.py"
    text = config.read_text()
    place = "    lr_end: float | None = learned(\n"
    assert text.count(place) == 1
    config.write_text(
        text.replace(
            place,
            '    momentum: float = learned(0.9, "how much of the last update is kept", low=0,\n'
            '        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL, tries=(0.5,), words="momentum {:g}", '
            ")\n" + place,
        )
    )

    assert "--momentum X" in said(copy, "-m", "horovod_study.cli", "strain", "train", "--help-all")
    names = [each["name"] for each in cells(copy, {"workers": [1], "runtime": "serial", "momentum": [0.5, 0.9]})]
    assert {"momentum 0.5" in name for name in map(str, names)} == {True, False}
    program = """
import json
from horovod_study.analysis.series.points import CHOICES
from horovod_study.strain.options import STRAIN
from horovod_study.config.roles import Role
print(json.dumps(["momentum" in CHOICES, STRAIN.tuned["momentum"], "momentum" in STRAIN.named(Role.MAY_DIFFER)]))
"""
    assert json.loads(said(copy, "-c", program)) == [True, [0.5], False]


@pytest.mark.slow
def test_a_backend_takes_its_declaration_and_its_code(copy: Path) -> None:
    """It is swept over, started by its launchers, opened by `train`, and named for readers."""
    table = copy / "runtimes" / "__init__.py"
    text, place = table.read_text(), "    )\n}\nCARRIED = "
    assert text.count(place) == 1
    row = (
        '        Library(name="echo", label="Echo", implementation="horovod_study.comm.echo:EchoBackend",\n'
        '            start_up_s=1, transports=(Transport(name="mpi"), Transport(name="air", here=("torchrun",)))),\n'
    )
    table.write_text(text.replace(place, row + place))
    (copy / "comm" / "echo.py").write_text(
        "from horovod_study.comm.base import SerialBackend\n"
        "class EchoBackend(SerialBackend):\n"
        '    name = "echo"\n'
        '    transport = "air"\n'
    )

    found = cells(copy, {"workers": [1], "runtime": ["echo/air", "echo/mpi"]})
    assert {each["runtime"] for each in found} == {"serial", "echo/air", "echo/mpi"}
    train = ("-m", "horovod_study.train", "--dataset", "400", "--steps", "3", "--warmup-steps", "0", "--json")
    ran = json.loads(said(copy, *train, "--backend", "echo", "--out", "run").splitlines()[-1])
    assert (ran["backend"], ran["transport"]) == ("echo", "air")
    program = """
from horovod_study.cluster.launch import Starting, launch_line
from horovod_study.config.run import local_cell
from horovod_study.report.kit.style import runtime_label
import os, sys
from pathlib import Path
cell = local_cell("echo/air", {}, workers=2, source="test")
start = Starting(python=Path(sys.executable), environ=os.environ)
line = launch_line(cell, start, config=Path("c"), out=Path("o"))
print(runtime_label("echo", "air"), "torch.distributed.run" in line.argv)
"""
    assert said(copy, "-c", program).split() == ["Echo/air", "True"]


ROOT_LAW = '''"""S = level sqrt(N)."""
import math
import numpy as np
from horovod_study.laws import Law
from horovod_study.analysis.laws.law import Trend
class Root(Law):
    """S = level sqrt(N)."""
    name, label, text = "root", "square root", "S = level sqrt(N)"
    bounds = {"level": (0.0, math.inf)}
    linear = True
    trends = (Trend(name="roots", place=20, of="time", costs=(np.sqrt,)),)
    def curve(self, n, level):
        return level * np.sqrt(n)
    def bottleneck_of(self, n, level):
        return "contention"
'''


@pytest.mark.slow
def test_a_law_takes_its_file(copy: Path) -> None:
    """It is fitted, selected and combined with the others, its curve is drawn, and figures and page name it."""
    (copy / "analysis" / "laws" / "root.py").write_text(ROOT_LAW)
    points = copy.parent / "points.csv"
    noise = (0.999, 1.001, 1.0)
    rows = [f"{n},{100 * n**0.5 * each}" for n in (1, 2, 4, 8, 16) for each in noise]
    points.write_text("\n".join(["workers,samples_per_s", *rows]))

    fits = json.loads(said(copy, "-m", "horovod_study.cli", "fit", str(points), "--json"))["series"][""]
    assert fits["selected"] == "root"
    assert fits["laws"]["root"]["formula"] == "S = level sqrt(N)"
    assert fits["laws"]["root"]["params"]["level"] == pytest.approx(1, rel=2e-3)
    assert fits["laws"]["root"]["bottleneck"] == "contention"
    foretold = json.loads(said(copy, "-m", "horovod_study.cli", "predict", str(points), "--workers", "32", "--json"))
    assert "roots" in foretold["series"][""][0]["weights"]
    program = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from horovod_study.analysis.study import analyze
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.page.html import render
from make.synthetic_runs import run_table
runs = run_table((1, 2, 4, 8, 16), ways=(("serial", "none"), ("horovod", "mpi")), failed=())
noise = 1 + 1e-3 * np.random.default_rng(0).standard_normal(len(runs))
runs["samples_per_s"] = 40_000 * np.sqrt(runs["workers"]) * noise
study = analyze(runs)
curve = study.curves[(study.curves["law"] == "root") & study.curves["selected"]]
shown = {{each.name: each.caption for each in drawings(study)}}
page = render(study)
print(json.dumps([len(curve), "square root" in shown["speedup"], page.count("square root"), "level sqrt" in page]))
"""
    length, captioned, named, formula = json.loads(said(copy, "-c", program))
    assert length > 10
    assert captioned
    assert named >= 2
    assert formula


@pytest.mark.slow
def test_a_verb_takes_its_file_and_a_line_of_the_list(copy: Path) -> None:
    """It is in the help, has help of its own, prints lines or a document, and refuses what it does not know."""
    before = {path: path.read_text() for path in copy.rglob("*.py")}
    (copy / "cli" / "greet.py").write_text(
        '"""`horovod-study greet`: a verb more."""\n'
        "from horovod_study.cli.verbs import Result, Verb\n"
        "def greet_arguments(parser):\n"
        '    parser.add_argument("name")\n'
        "def greet(options):\n"
        '    """Greet somebody."""\n'
        '    return Result(document={"greeted": options.name}, lines=[f"good day, {options.name}"])\n'
        'VERBS = (Verb("greet", greet, greet_arguments),)\n'
    )
    listed = copy / "cli" / "__init__.py"
    for old, new in (
        ("import benchmarks, report,", "import benchmarks, greet, report,"),
        ("    *strain.VERBS,\n", "    *greet.VERBS,\n"),
    ):
        assert before[listed].count(old) == 1
        listed.write_text(listed.read_text().replace(old, new + (old if old.startswith(" ") else "")))

    words = ("-m", "horovod_study.cli")
    assert "greet" in said(copy, *words, "--help") and "Greet somebody." in said(copy, *words, "greet", "--help")
    assert said(copy, *words, "greet", "Ada") == "good day, Ada\n"
    assert json.loads(said(copy, *words, "greet", "Ada", "--json")) == {"greeted": "Ada"}
    changed = {path for path in copy.rglob("*.py") if before.get(path) != path.read_text()}
    assert {path.name for path in changed} == {"greet.py", "__init__.py"}


FIGURE = '''
"""The workers of each point, counted."""
from horovod_study.report.grammar import Figure, Panel, Points
from horovod_study.report.kit.style import series_styles
def invented(analysis):
    data = analysis.points[["series", "workers"]].assign(count=1.0)
    panels = [Panel(layers=[Points(rows=data, y="count")], y="Points")]
    words = {"title": "How many points", "caption": "Points by workers."}
    return Figure(name="invented", data=data, panels=panels, looks=series_styles(analysis.points), **words)
'''


@pytest.mark.slow
def test_a_figure_takes_its_file_and_its_place_in_the_catalogue(copy: Path) -> None:
    """It is among the figures, has files with caption and data, is on the page, and the check knows it."""
    before = {path: path.read_text() for path in copy.rglob("*.py")}
    (copy / "report" / "figures" / "invented.py").write_text(FIGURE)
    catalogue = copy / "report" / "figures" / "catalogue.py"
    text = catalogue.read_text()
    for old, new in (
        ("causes, convergence, ", "causes, convergence, invented, "),
        ("    *(causes.usage, ", "    *(invented.invented, causes.usage, "),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    catalogue.write_text(text)
    program = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from horovod_study.analysis.study import analyze
from horovod_study.report.figures.catalogue import write_figures
from horovod_study.report.page.html import render
from make.synthetic_runs import run_table
study = analyze(run_table((1, 2, 4), ways=(("serial", "none"), ("horovod", "mpi")), failed=()))
files = sorted(path.name for path in write_figures(study, Path("figures")) if path.stem == "invented")
print(json.dumps([files, "How many points" in render(study)]))
"""
    files, on_page = json.loads(said(copy, "-c", program).splitlines()[-1])

    assert files == [f"invented.{ending}" for ending in ("csv", "pdf", "png", "svg", "txt")]
    assert on_page
    changed = {path for path in copy.rglob("*.py") if before.get(path) != path.read_text()}
    assert changed == {catalogue, copy / "report" / "figures" / "invented.py"}


@pytest.mark.slow
def test_a_workload_takes_its_file(copy: Path) -> None:
    """A study varies its options, whatever they are called; tests/test_workloads.py takes one the whole way."""
    toy = (Path(__file__).parent / "workloads" / "toy.py").read_text()
    (copy.parent / "invented.py").write_text(toy.replace("units", "neurons").replace('"toy"', '"invented"'))
    path = study(copy, {"workers": [1], "runtime": "serial", "neurons": [3, 5]})
    content = {**yaml.safe_load(path.read_text()), "workload": "invented.py", "run": {"steps": 3}}
    path.write_text(yaml.safe_dump(content))

    plan = json.loads(said(copy, "-m", "horovod_study.cli", "run", str(path), "--plan", "--json"))
    names = {each["name"].partition(", repeat")[0] for each in plan["cells"]}
    assert names == {"serial, 1 worker, neurons 3", "serial, 1 worker, neurons 5"}
