"""The walls of the house: who may import what."""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from make.waiting import PATIENCE_S
from test_imports import LAYERS

import horovod_study

ROOT = Path(horovod_study.__file__).parent
RUN_WING = ("strain", "comm", "measure", "cluster", "studies", "programs", "train", "recording")
ANALYSIS_WING = ("analysis", "report")
ONLY_BELOW = {
    "horovod": ("comm/", "programs/equality.py"),
    "torch.distributed": ("comm/", "programs/equality.py", "recording/rank/"),
    "mpi4py": ("comm/", "programs/microbench.py"),
    "matplotlib": ("report/",),
    "time": ("measure/clock.py", "recording/rank/events.py"),  # the ranks of others have only the standard library
}
NEVER = ("pickle", "marshal", "shelve", "dill")
RECORDS = {path.stem for path in (ROOT / "records").glob("*.py")}
KITS = ("horovod_study.analysis.costs", "horovod_study.analysis.paired", "horovod_study.analysis.stats")
KITS += ("horovod_study.measure.energy",)
"""What both wings use. A kit imports nothing of the package but other kits and the errors."""
PLACES = tuple({kit.rpartition(".")[0] for kit in KITS})


def modules() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(module: str) -> set[str]:
    """Names of all modules that `module` imports anywhere, `from a import b` giving both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide which wall they cross"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def breaches(module: str, imported: set[str]) -> list[str]:
    """Describe every wall that `module` breaks by importing `imported`."""
    wing = module.split("/")[0].removesuffix(".py")
    faults = []
    for name in sorted(imported):
        for guarded, homes in ONLY_BELOW.items():
            if (name == guarded or name.startswith(f"{guarded}.")) and not module.startswith(homes):
                faults.append(f"{module} imports {name}, which belongs below {', '.join(homes)}")
        if name.split(".")[0] in NEVER:
            faults.append(f"{module} imports {name}, which can execute data")
        target = name.split(".")[1] if name.startswith("horovod_study.") else ""
        dotted = f"horovod_study.{module.removesuffix('.py').replace('/', '.')}"
        of_kit = any(name == kit or name.startswith(f"{kit}.") for kit in KITS)
        if dotted in KITS and target not in ("", "errors") and not of_kit and name not in PLACES:
            faults.append(f"{module} imports {name}: a kit imports nothing of the package but kits and the errors")
        if of_kit:
            continue
        if (wing in RUN_WING and target in ANALYSIS_WING) or (wing in ANALYSIS_WING and target in RUN_WING):
            faults.append(f"{module} imports {name}: the wings meet only at the run directory")
        if wing == "recording" and target == "strain":
            faults.append(f"{module} imports {name}: a recorded run knows nothing of what is trained")
        below_records = name.startswith("horovod_study.records.") and name.split(".")[2] in RECORDS
        if wing != "records" and below_records:
            faults.append(f"{module} imports {name}: what others may know of a run directory is in records itself")
        if wing == "analysis" and target == "report":
            faults.append(f"{module} imports {name}: analysis does not draw")
    return faults


@pytest.mark.parametrize("module", modules())
def test_no_module_breaks_a_wall(module: str) -> None:
    assert breaches(module, imports(module)) == []


def test_every_module_has_a_layer() -> None:
    parts = {part.split(".")[0] for layer in LAYERS for part in layer}
    top = {module.split("/")[0].removesuffix(".py") for module in modules()}

    assert top == {"__init__", *parts}
    assert {*RUN_WING, *ANALYSIS_WING} <= parts


@pytest.mark.parametrize(
    ("module", "imported", "fault"),
    [
        ("analysis/laws/costs.py", "horovod_study.train", "the wings meet only"),
        ("train.py", "horovod_study.report.page.html", "the wings meet only"),
        ("train.py", "time", "belongs below measure/clock.py"),
        ("train.py", "horovod.torch", "belongs below comm/"),
        ("strain/model.py", "torch.distributed", "belongs below comm/"),
        ("analysis/study.py", "matplotlib.pyplot", "belongs below report/"),
        ("analysis/study.py", "horovod_study.report.page.html", "analysis does not draw"),
        ("recording/session.py", "horovod_study.strain.model", "knows nothing of what is trained"),
        ("records/reader.py", "pickle", "can execute data"),
        ("studies/designs.py", "horovod_study.analysis.compare.comparison", "the wings meet only"),
        ("studies/designs.py", "horovod_study.records.writer", "what others may know of a run directory"),
        ("analysis/stats.py", "horovod_study.records", "a kit imports nothing"),
        ("analysis/paired.py", "horovod_study.analysis.series.points", "a kit imports nothing"),
    ],
)
def test_a_breach_would_be_seen(module: str, imported: str, fault: str) -> None:
    assert any(fault in text for text in breaches(module, {imported}))


def test_analysis_imports_without_torch_horovod_and_mpi() -> None:
    """It works on a laptop: the imports are made where those packages cannot be found."""
    dotted = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in modules()]
    wanted = ["cli", "records", "config.options", *(name for name in dotted if name.split(".")[0] in ANALYSIS_WING)]
    program = f"""
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "horovod", "mpi4py"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in {wanted!r}:
    importlib.import_module("horovod_study." + name)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_plain_run_imports_no_communication_library() -> None:
    """`python -m horovod_study.train` alone is plain PyTorch."""
    program = """
import sys
from horovod_study.train import main
code = main(["--dataset", "400", "--batch", "10", "--steps", "3", "--warmup-steps", "0", "--out", sys.argv[1]])
loaded = {"horovod", "mpi4py"} & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else code)
"""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program, f"{folder}/run"], check=True, timeout=120)
