"""Lists of options are derived from what options declare of themselves; none is written manually."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from make.wording import Golden

import horovod_study
from horovod_study import records
from horovod_study.config import run as config
from horovod_study.config.options import SET_BY_ATTRIBUTION, SET_BY_COMPARE, SET_BY_RANGE_TEST
from horovod_study.config.roles import Option, Role, named
from horovod_study.config.run import COMMUNICATION
from horovod_study.config.workload import SHARED
from horovod_study.runtimes import BACKENDS, RUNTIMES
from horovod_study.strain.options import STRAIN, StrainConfig

ROOT = Path(horovod_study.__file__).parent
FEW = 2
"""So many names in one literal are no list yet."""

OF_EVERY_RUN = {
    *named(STRAIN.options, Role.NAMING | Role.RUNTIME | Role.BUDGET),
    *records.OF_EVERY_RUN,
    *("horovod_defaults", "seed", "device"),
}
"""Columns that tables have of every run, whatever was trained."""

ALLOWED = {
    (
        "cli/benchmarks.py",
        "cuda_graphs kernels loader threads widths",
    ): "options of `bench timers`, which declares its own",
    ("studies/bench.py", "dataset input_scaling kernels lr_scaling"): "the job that the proof hands to its program",
    ("recording/recorder.py", "disk_full steady timer_mode warmup_steps"): "arguments of recorder()",
}
"""(module, names in alphabetical order): why they are there."""

OWN = ("strain/", "train.py", "config/run.py", "config/workload.py")
"""What trains, and where its options are declared."""


def literals(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Yield line and texts of each tuple, list, set, dictionary and call that is written out; nested count as one."""
    inner: set[int] = set()

    def texts(node: ast.expr) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Starred):
            yield from texts(node.value)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            inner.add(id(node))
            for each in node.elts:
                yield from texts(each)

    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Dict):
            yield node.lineno, {text for key in node.keys if key is not None for text in texts(key)}
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield node.lineno, set(texts(node))
        elif isinstance(node, ast.Call):
            yield node.lineno, {text for each in node.args for text in texts(each)}


def lists_of_options(source: str) -> list[tuple[int, str]]:
    """Return line and names of the literals in a module that hold more than FEW options."""
    found = [(line, texts & set(STRAIN.options) - OF_EVERY_RUN) for line, texts in literals(ast.parse(source))]
    return [(line, " ".join(sorted(names))) for line, names in found if len(names) > FEW]


def modules() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("module", [each for each in modules() if not each.startswith(OWN)])
def test_no_list_of_options_is_written_by_hand(module: str) -> None:
    found = lists_of_options((ROOT / module).read_text(encoding="utf-8"))

    assert [f"{module}:{line}: {names}" for line, names in found if (module, names) not in ALLOWED] == []


def test_no_reason_outlives_its_list() -> None:
    found = {
        (module, names)
        for module in modules()
        for _, names in lists_of_options((ROOT / module).read_text(encoding="utf-8"))
    }

    assert set(ALLOWED) <= found


@pytest.mark.parametrize(
    "source",
    [
        'NAMES = ("widths", "kernels", "threads")',
        'NAMES = (*("widths", "kernels"), *("threads",))',
        'WORDS = {"widths": 1, "kernels": 2, "threads": 3}',
        'if name in {"widths", "kernels", "threads"}: pass',
    ],
)
def test_a_list_would_be_seen(source: str) -> None:
    assert lists_of_options(source) == [(1, "kernels threads widths")]


STRAIN_ONLY = set(STRAIN.options) - set(SHARED) - set(config.OPTIONS)
"""Options that no other workload has: those of how a run communicates, is measured and placed are of any."""

OF_ANY_RECORD = {
    **dict.fromkeys(("lr", "optimizer", "precision"), "facts that the recorder finds of anybody's training"),
    "target_mse": "a column of tables: what `test_mse` of a record was to reach",
}
"""Names that the package gives to what a run directory or a table holds, whatever was trained; and why."""

OF_STRAIN = {
    "cli/benchmarks.py": "benchmarks of the worked example",
    "cli/strain.py": "verbs of the worked example",
    "programs/": "benchmarks and proofs of the worked example",
    "studies/bench.py": "benchmark and range test of the worked example, and the proof by it that averaging is right",
}
"""Programs and experiments of the package's own training, which know it by name, and why."""

NAMED = {
    ("analysis/machine/advice.py", "widths"): "counts the layers of the worked example",
    ("analysis/steps/breakdown.py", "cuda_graphs"): "says why a captured step has no data lap",
    ("analysis/learning/convergence.py", "schedule"): "a rate that depends on the length of the run",
    ("studies/designs.py", "schedule"): "a rate that depends on the length of the run",
    ("recording/recorder.py", "dataset"): "an attribute of PyTorch's DataLoader",
}
"""(module, option) that is still named elsewhere, and why."""


def imports_of(tree: ast.AST) -> set[str]:
    """Return the names that a module imports from others."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in found for alias in node.names}


def options_named(tree: ast.AST) -> set[str]:
    """Return the strain-only options that a module names: as a text, or as an attribute of a configuration."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    of_configurations = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in STRAIN_ONLY
        and "config" in ast.unparse(node.value).rpartition(".")[2]
    }
    return (texts - set(OF_ANY_RECORD) | of_configurations) & STRAIN_ONLY


def test_nobody_else_names_an_option_of_the_worked_example() -> None:
    """Nor do mypy and the imports let anybody: elsewhere a configuration is a `Configuration` or a `RunConfig`."""
    named_at: set[tuple[str, str]] = set()
    knowing = set()
    for module in modules():
        tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
        if module.startswith(("strain/", "train.py")):
            continue
        named, imported = options_named(tree), imports_of(tree)
        if {"StrainConfig", "strain_config"} & imported or named:
            knowing.add(module)
        if not module.startswith(tuple(OF_STRAIN)):
            assert not {"StrainConfig", "strain_config", "STRAIN"} & imported, module
            named_at |= {(module, name) for name in named}

    assert set(NAMED) == named_at
    assert [place for place in OF_STRAIN if not any(module.startswith(place) for module in knowing)] == []


@pytest.mark.parametrize(
    "source",
    ['row["kernels"]', "config.widths", "cell.config.lr", 'NAMES = ("dataset",)', "self._config.precision"],
)
def test_a_named_option_would_be_seen(source: str) -> None:
    assert len(options_named(ast.parse(source))) == 1


def test_every_option_says_what_it_is_to_a_study() -> None:
    # `seed` is the one that repeats change.
    assert [name for name, each in STRAIN.options.items() if each.roles is Role.NONE] == ["seed"]


def test_what_may_be_swept_makes_runs_different_experiments() -> None:
    assert set(STRAIN.sweepable) <= set(STRAIN.distinguishing)


def test_communication_options_work_over_some_runtime_and_mean_nothing_alone() -> None:
    for name in COMMUNICATION:
        assert any(STRAIN.options[name].matters(runtime) for runtime in RUNTIMES if runtime != "serial"), name
        assert not STRAIN.options[name].matters("serial"), name
        assert Role.SEVERAL in STRAIN.options[name].roles, name


def test_values_that_options_name_are_valid_ones() -> None:
    for each in STRAIN.options.values():
        for value in each.tries:
            assert each.check("test", value) == value
    assert vars(StrainConfig(**STRAIN.quiet)) == {**vars(StrainConfig()), **STRAIN.quiet}


def test_the_library_and_its_transport_are_named_by_experiments_themselves() -> None:
    for names in (SET_BY_RANGE_TEST, SET_BY_COMPARE, SET_BY_ATTRIBUTION):
        assert set(named(STRAIN.options, Role.RUNTIME | Role.PROBE)) <= set(names) <= set(STRAIN.options)
        assert len(names) == len(set(names))


def test_a_value_is_named_for_readers(golden: Golden) -> None:
    bare = Option(name="cycle_time_ms")

    golden(bare.say("shipped"))
    assert bare.say(2) == "cycle time 2"
    assert Option(name="x", words="x of {:g}").say(2.0) == "x of 2"
    assert Option(name="x", words=lambda value: value.upper()).say("a") == "A"


def test_backends_and_runtimes_are_named_alike() -> None:
    assert {runtime.partition("/")[0] for runtime in RUNTIMES} == set(BACKENDS)
    assert STRAIN.sweepable[0] == "batch"  # the order in which a study crosses them decides the order of its cells
