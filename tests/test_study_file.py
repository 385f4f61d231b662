"""The file of a study: what it refuses, and the cells it expands to."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.config.partitions import find_partition
from horovod_study.config.run import Cell, Placement, misplaced
from horovod_study.errors import ConfigError
from horovod_study.runtimes import RUNTIMES
from horovod_study.strain.options import STRAIN, StrainConfig
from horovod_study.studies.study_file import StudyConfig, load_study

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return path


GOOD = """
study: laptop
repeats: 2
run: {dataset: 1000, batch: 10, seconds: 1}
sweep: {workers: [1, 2], runtime: [horovod/mpi, horovod/gloo]}
"""


def test_cells_of_a_study(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    cells = study.cells()
    found = sorted((cell.runtime, cell.placement.workers, cell.config.repeat) for cell in cells)

    # plain once, each runtime with 1 worker (its wrapped baseline) and 2 workers, everything twice
    assert found == sorted(
        (runtime, workers, repeat)
        for repeat in (0, 1)
        for runtime, workers in [("serial", 1), *((f"horovod/{t}", n) for t in ("mpi", "gloo") for n in (1, 2))]
    )
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.config.backend for cell in cells} == {"serial", "horovod"}
    assert all(cell.config.study == "laptop" for cell in cells)


def test_a_heading_with_nothing_below_it_says_nothing(tmp_path: Path) -> None:
    study = load_study(
        write(tmp_path, "study: s\nrun:\nsweep:\n  workers: [1, 2]\n  zip:\nbudget:\nprecision:\nquestion:\n")
    )

    assert (study.zipped, study.budget, study.precision, study.question) == ((), {}, None, "")


def test_a_date_is_a_name(tmp_path: Path) -> None:
    assert load_study(write(tmp_path, GOOD.replace("laptop", "2026-07-31"))).name == "2026-07-31"


def test_baselines_are_added_by_themselves(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD.replace("[1, 2]", "[2]")))
    assert ("horovod/mpi", 1) in {(cell.runtime, cell.placement.workers) for cell in study.cells()}

    without = load_study(write(tmp_path, GOOD.replace("[1, 2]", "[2]") + "baselines: [plain]"))
    assert ("horovod/mpi", 1) not in {(cell.runtime, cell.placement.workers) for cell in without.cells()}


def test_varied_options_are_crossed(tmp_path: Path) -> None:
    study = load_study(
        write(tmp_path, GOOD.replace("batch: 10, ", "").replace("sweep: {", "sweep: {batch: [10, 20], "))
    )

    assert {cell.config.batch for cell in study.cells()} == {10, 20}
    assert len(study.cells()) == 2 * 2 * 5


def test_a_knob_of_communication_does_not_multiply_the_plain_baseline(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD.replace("sweep: {", "sweep: {horovod_defaults: [false, true], ")))
    plain = [cell for cell in study.cells() if cell.runtime == "serial"]

    assert len(plain) == 2, "one per repeat"
    assert len(study.cells()) == 2 * (1 + 2 * 4)


def test_an_option_without_effect_on_a_runtime_does_not_multiply_its_runs(tmp_path: Path) -> None:
    text = GOOD.replace("horovod/gloo]", "ddp/gloo], cycle_time_ms: [0.05, 1, 10]")
    cells = [cell for cell in load_study(write(tmp_path, text)).cells() if cell.config.repeat == 0]
    two = [(cell.runtime, cell.config.cycle_time_ms) for cell in cells if cell.placement.workers == 2]

    assert two == [("horovod/mpi", 0.05), ("ddp/gloo", None), ("horovod/mpi", 1.0), ("horovod/mpi", 10.0)]


def test_the_key_names_the_content(tmp_path: Path) -> None:
    first, again = (load_study(write(tmp_path, GOOD)).cells()[0] for _ in range(2))
    other = load_study(write(tmp_path, GOOD.replace("batch: 10", "batch: 11"))).cells()[0]

    assert first.key == again.key
    assert first.key != other.key
    assert first.key.startswith("serial-1w-b10-r0-")


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, (1,)), (2, (1, 2)), (8, tuple(range(1, 9))), (48, (1, 2, 4, 8, 16, 32, 48))]
)
def test_workers_up_to_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, counts: tuple[int, ...]
) -> None:
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: cores)
    assert load_study(write(tmp_path, GOOD.replace("[1, 2]", "cores"))).workers == counts


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeats:", "repeat:", r"study\.yaml: unknown key 'repeat' \(did you mean 'repeats'\?\); allowed: study"),
        ("batch: 10", "bach: 10", r"study\.yaml: run: unknown key 'bach' \(did you mean 'batch'\?\)"),
        ("workers:", "worker:", r"study\.yaml: sweep: unknown key 'worker' \(did you mean 'workers'\?\)"),
        ("horovod/mpi", "horovod/mpy", r"runtime\.0 is 'horovod/mpy' \(did you mean 'horovod/mpi'\?\)"),
        ("[1, 2]", "[0]", r"sweep: workers\.0 is 0; it must be at least 1"),
        ("[1, 2]", "[]", r"sweep: workers is \[\]; give at least one value"),
        ("repeats: 2", "repeats: 0", "repeats is 0; it must be at least 1"),
        ("batch: 10", "backend: ddp", r"run: backend cannot be fixed here; it comes from sweep\.runtime"),
        ("sweep: {", "sweep: {batch: [1], ", "batch is both fixed under run and varied under sweep"),
        ("study: laptop\n", "", r"study\.yaml: study is missing"),
        ("repeats: 2", "repeats: 2\nrepeats: 3", "line 4 is not valid YAML .*'repeats' is given twice"),
        ("repeats: 2", "repeats: [", r"study\.yaml: line \d+ is not valid YAML"),
        ("repeats: 2", "rate: 'speed: ([0-9.]+)'", "rate is what the output of a command says.*give command, or leave"),
        ("study: laptop", 'study: "\\ud800"', r"study is '.ud800'; it must be a text in Unicode"),
        ("repeats: 2", "baselines: [fast]", r"baselines\.0 is 'fast'; allowed: plain, wrapped"),
    ],
)
def test_a_wrong_study_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, GOOD.replace(old, new)))


# ---------------------------------------------------------------------------------------------------- partitions


ALPHA = """
study: cluster
partition: alpha
repeats: 1
run: {dataset: 1000, batch: 10, seconds: 1}
sweep: {workers: [1, 2, 8, 10], runtime: horovod/nccl}
"""
MINE = "scheduler: slurm\ncores_per_node: 8\ncores_per_worker: 2\nnodes: 3\n"


def per_node(study: StudyConfig, runtime: str = "horovod/nccl") -> list[tuple[int, ...]]:
    return [cell.placement.per_node for cell in study.cells() if cell.runtime == runtime]


def swept(tmp_path: Path, sweep: str, *, more: str = "") -> StudyConfig:
    """Return a study on three nodes of four slots with `sweep`."""
    (tmp_path / "partitions").mkdir(exist_ok=True)
    (tmp_path / "partitions" / "mine.yaml").write_text(MINE)
    text = f"study: s\npartition: mine\nrepeats: 1\nrun: {{seconds: 1}}\nsweep: {{{sweep}}}\n{more}"
    return load_study(write(tmp_path, text))


def test_nodes_are_filled_one_after_the_other(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, ALPHA))

    assert per_node(study) == [(1,), (2,), (8,), (8, 2)]
    assert {cell.config.partition for cell in study.cells()} == {"alpha"}
    assert study.partitions == {"alpha": find_partition("alpha")}


def test_a_study_on_several_partitions_has_all_cells_on_each(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, ALPHA.replace("alpha", "[alpha, gpu2]") + "account: me\n"))
    where = [(cell.placement.partition, cell.runtime, cell.placement.per_node) for cell in study.cells()]

    assert where == [
        *(("alpha", "serial", (1,)), *(("alpha", "horovod/nccl", each) for each in ((1,), (2,), (8,), (8, 2)))),
        *(("gpu2", "serial", (1,)), *(("gpu2", "horovod/nccl", each) for each in ((1,), (2,), (4, 4), (4, 4, 2)))),
    ]
    assert {each.account for each in study.partitions.values()} == {"me"}
    assert study.cells()[-1].label == "gpu2, horovod/nccl, 10 workers, 3 nodes"
    assert [cell.config.partition for cell in study.cells()] == [part for part, *_ in where]


@pytest.mark.parametrize(
    ("sweep", "wanted"),
    [
        ("workers: [4, 5]", [(1,), (4,), (4, 1)]),
        ("nodes: [1, 2, 3]", [(1,), (4,), (4, 4), (4, 4, 4)]),
        ("nodes: [1, 3], workers_per_node: 2", [(1,), (2,), (2, 2, 2)]),
        ("workers: [2, 3], workers_per_node: [1, 2]", [(1,), (1, 1), (2,), (1, 1, 1), (2, 1)]),
        ("workers: [5], nodes: 2, placement: spread", [(1,), (3, 2)]),
        ("workers: [2, 5], nodes: [2, 3], placement: spread", [(1,), (1, 1), (3, 2), (2, 2, 1)]),
        ("workers: [2, 5], placement: spread", [(1,), (1, 1), (2, 2, 1)]),  # over all three
        ("workers: [5], workers_per_node: 2, placement: spread", [(1,), (2, 2, 1)]),
        ("workers: [4], nodes: 2, placement: [fill, spread]", [(1,), (4,), (2, 2)]),
        ("nodes: 2, placement: spread", [(1,), (4, 4)]),
        ("zip: {workers: [6, 8], nodes: [2, 3]}, placement: spread", [(1,), (3, 3), (3, 3, 2)]),
        ("zip: {nodes: [1, 2], batch: [150, 75]}", [(1,), (4,), (1,), (4, 4)]),
    ],
)
def test_where_workers_go(tmp_path: Path, sweep: str, wanted: list[tuple[int, ...]]) -> None:
    study = swept(tmp_path, sweep)

    assert per_node(study, "horovod/mpi") == wanted
    assert len({cell.label for cell in study.cells()}) == len(study.cells()), "names distinguish cells"


def test_one_worker_is_not_spread(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, ALPHA.replace("[1, 2, 8, 10]", "[1, 10], nodes: 2, placement: spread")))

    assert per_node(study) == [(1,), (5, 5)]


def test_named_nodes(tmp_path: Path) -> None:
    study = swept(
        tmp_path, "workers: [2, 4], workers_per_node: 2, placement: list", more="hosts: [b, a]\nbaselines: []\n"
    )

    assert [cell.placement.hosts for cell in study.cells()] == [("b",), ("b", "a")]
    assert {cell.placement.layout for cell in study.cells()} == {"list"}


def test_the_trainer_is_told_what_it_can_check(tmp_path: Path) -> None:
    plain, *cells = swept(tmp_path, "workers: [4], workers_per_node: 2, placement: [fill, spread]").cells()
    told = [(cell.config.placement, cell.config.workers_per_node) for cell in cells]

    assert (plain.config.placement, plain.config.workers_per_node) == ("fill", None), "alone there is no placement"
    assert told == [("fill", 2), ("fill", 2), ("spread", 2)], "and one worker of a library is run for one of them"


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            "workers: [13]",
            "13 workers need 4 nodes at 4 each, but partition mine has 3 with room for 12 workers; lower",
        ),
        ("nodes: [4]", "16 workers need 4 nodes at 4 each, but partition mine has 3"),
        ("workers: [4], workers_per_node: 1", "4 workers need 4 nodes at 1 each, but partition mine has 3"),
        ("workers: [4], workers_per_node: 5", r"5 workers per node .* a node of partition mine takes 4 \(8 cores\)"),
        (
            "workers: [10], nodes: 2, placement: spread",
            "5 workers per node are asked for, but a node of partition mine",
        ),
        ("workers: [2], nodes: 2", "workers and nodes are both given; nodes alone are full ones"),
        ("workers: [2], nodes: 2, workers_per_node: 1, placement: spread", "are all given; give two of them"),
        ("workers: cores", "workers counts up to the cores of this machine, but the study runs on partition mine"),
        ("runtime: serial", "workers counts up to the cores of this machine"),
        ("workers: [2], placement: sprad", r"placement is 'sprad' \(did you mean 'spread'\?\)"),
        ("workers: [2], placement: list", "placement list needs the names of its nodes, and only list has any"),
        (
            "backend: [mpi], transport: [mpi]",
            r"backend and transport are given; write runtime: \[horovod/mpi, ddp/gloo\]",
        ),
        ("nodes: []", r"nodes is \[\]; give at least one value"),
        ("nodes: [0]", r"sweep: nodes\.0 is 0; it must be at least 1"),
    ],
)
def test_placements_that_cannot_be(tmp_path: Path, sweep: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        swept(tmp_path, sweep)

    assert str(error.value).startswith(str(tmp_path / "study.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ALPHA.replace("alpha", "alfa"),
            r"study\.yaml.*alfa.*alpha",
        ),
        (ALPHA.replace("alpha", "[alpha, alpha]"), ""),
        (ALPHA.replace("alpha", "none.yaml"), r"study\.yaml.*none\.yaml"),
        (ALPHA.replace("alpha", "[]"), ""),
        (ALPHA + 'account: "a\\nb"', r"a\\nb"),
        (
            GOOD.replace("sweep: {", "sweep: {nodes: 2, ").replace("workers: [1, 2], ", ""),
            "4 workers.*2 nodes",
        ),
        (
            GOOD.replace("sweep: {", "sweep: {workers_per_node: 1, "),
            "2 workers.*2 nodes",
        ),
        (GOOD.replace("sweep: {", "sweep: {placement: list, ") + "hosts: [a]", ""),
        (
            ALPHA.replace("sweep: {", "sweep: {placement: spread, "),
            "",
        ),
        (
            ALPHA.replace("sweep: {", "sweep: {placement: list, ") + "hosts: [a]",
            "10 workers.*2 nodes",
        ),
        (
            ALPHA.replace("sweep: {", "sweep: {placement: list, ") + "hosts: [-oProxyCommand=x]",
            "-oProxyCommand=x",
        ),
        (
            ALPHA.replace("alpha", "[alpha, gpu2]").replace("sweep: {", "sweep: {placement: list, ") + "hosts: [a, b]",
            "",
        ),
        (
            GOOD.replace("seconds: 1", "placement: spread"),
            r"sweep\.plac",
        ),
        (ALPHA.replace("alpha", "a" * 5000), "partition.*250"),
    ],
)
def test_wrong_partitions(
    tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("horovod_study.config.partitions.available_cores", lambda: 2)
    with golden.raises(ConfigError, match=message or None):
        load_study(write(tmp_path, text))


def test_hosts_of_a_partition_over_ssh_are_known(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "pair.yaml").write_text("scheduler: ssh\ncores_per_node: 2\nhosts: [node1, node2]\n")
    text = ALPHA.replace("alpha", "pair.yaml").replace("[1, 2, 8, 10]", "[1, 4]").replace("nccl", "gloo")
    listed = text.replace("sweep: {", "sweep: {placement: list, ")
    study = load_study(write(tmp_path, listed + "hosts: [node2, node1]"))

    assert [cell.placement.hosts for cell in study.cells()] == [("node2",), ("node2",), ("node2", "node1")]
    with golden.raises(ConfigError, match="node3.*node1.*node2"):
        load_study(write(tmp_path, listed + "hosts: [node3]"))


# ---------------------------------------------------------------------------------------------------- batches, zip


def test_strong_scaling_divides_the_batch(tmp_path: Path) -> None:
    text = GOOD.replace("batch: 10, ", "").replace("[1, 2]", "[1, 2, 3]")
    for study in (
        load_study(write(tmp_path, text.replace("sweep: {", "sweep: {global_batch: 60, ") + "scaling: strong")),
        load_study(write(tmp_path, text.replace("dataset:", "global_batch: 60, dataset:"))),
    ):
        found = {(cell.runtime, cell.placement.workers, cell.config.batch) for cell in study.cells()}

        assert study.scaling == "strong"
        assert found == {
            ("serial", 1, 60),
            *((f"horovod/{way}", count, 60 // count) for way in ("mpi", "gloo") for count in (1, 2, 3)),
        }
    assert load_study(write(tmp_path, GOOD + "scaling: weak")).scaling == "weak"
    assert study.cells()[-1].label == "horovod/gloo, 3 workers, batch 20"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch: 10", "global_batch: 9", "global_batch 9 cannot be divided among 2 workers; give worker counts that"),
        ("batch: 10", "global_batch: [10, 20]", r"run: global_batch is \[10, 20\]; it must be a whole number"),
        ("batch: 10", "batch: 10, global_batch: 20", "batch and global_batch are both given; batch is of each worker"),
        ("sweep: {", "sweep: {global_batch: 8, ", "batch and global_batch are both given"),
        ("repeats: 2", "scaling: strong", "scaling is strong, but each worker has its batch; give global_batch"),
        ("batch: 10", "global_batch: 20", "scaling is weak, but global_batch is given; give batch"),
        ("repeats: 2", "scaling: stong", r"scaling is 'stong' \(did you mean 'strong'\?\)"),
    ],
)
def test_batches_that_do_not_fit(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GOOD + ("scaling: weak\n" if "weak" in message else "")
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, text.replace(old, new)))


def test_zipped_lists_go_together(tmp_path: Path) -> None:
    text = GOOD.replace("batch: 10, ", "").replace("workers: [1, 2],", "zip: {workers: [2, 4], batch: [150, 75]},")
    study = load_study(write(tmp_path, text + "baselines: [plain]\n"))
    found = [(c.runtime, c.placement.workers, c.config.batch) for c in study.cells() if c.config.repeat == 0]

    assert sorted(found) == sorted(
        [
            *(("serial", 1, 150), ("serial", 1, 75)),
            *(("horovod/mpi", 2, 150), ("horovod/gloo", 2, 150), ("horovod/mpi", 4, 75), ("horovod/gloo", 4, 75)),
        ]
    )
    several = text.replace("zip: {", "lr: [1e-3, 1e-2], zip: [{").replace("75]}", "75]}, {threads: [1, 2]}]")
    assert len(load_study(write(tmp_path, several + "baselines: []\n")).cells()) == 2 * (2 * 2 * 2 * 2)


@pytest.mark.parametrize(
    "new",
    [
        "{workers: [1, 2, 4], batch: [1, 2]}",
        "{workers: 2}",
        "{workers: []}",
        "{worker: [1]}",
        "{workers: [0]}",
        "[1, 2]",
        "{runtime: [serial]}",
        "[{lr: [1, 2]}, {lr: [1, 2]}]",
        "{batch: [1, 2]}",
    ],
)
def test_a_wrong_zip(tmp_path: Path, new: str, golden: Golden) -> None:
    with golden.raises(ConfigError):
        load_study(write(tmp_path, GOOD.replace("workers: [1, 2],", f"zip: {new},")))


def test_a_budget(tmp_path: Path, golden: Golden) -> None:
    found = load_study(write(tmp_path, GOOD + "budget: {gpu_hours: 20, hours: 1.5}")).budget

    assert found == {"gpu_hours": 20.0, "hours": 1.5}
    with golden.raises(ConfigError, match="gpu_hour.*gpu_hours"):
        load_study(write(tmp_path, GOOD + "budget: {gpu_hour: 20}"))
    with golden.raises(ConfigError, match="hours is 0;"):
        load_study(write(tmp_path, GOOD + "budget: {hours: 0}"))


def test_the_file_is_remembered_and_code_tells_cells_apart(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    study = load_study(path)
    plain = replace(study, identity={})

    assert (study.source, study.text) == (path, GOOD)
    assert set(study.identity) == {"local"} and len(study.identity["local"]) == 12
    assert {cell.identity for cell in study.cells()} == set(study.identity.values())
    assert {cell.identity for cell in plain.cells()} == {""}
    assert not {cell.key for cell in study.cells()} & {cell.key for cell in plain.cells()}


# ---------------------------------------------------------------------------------------------------- properties

counts = st.integers(1, 70)


@given(workers=counts, most=counts, layout=st.sampled_from(["fill", "spread", "list"]))
def test_workers_per_node_add_up(workers: int, most: int, layout: str) -> None:
    hosts = tuple(f"n{number}" for number in range(-(-workers // most))) if layout == "list" else ()
    placement = Placement(workers=workers, workers_per_node=most, layout=layout, hosts=hosts)
    found = placement.per_node

    assert sum(found) == workers
    assert len(found) == placement.nodes
    assert 1 <= min(found) and max(found) <= most
    assert list(found) == sorted(found, reverse=True)
    if layout == "spread":
        assert max(found) - min(found) <= 1
    else:
        assert set(found[:-1]) <= {most}


@given(workers=counts, most=counts, layout=st.sampled_from(["fill", "spread"]))
def test_a_run_placed_as_asked_is_not_misplaced(workers: int, most: int, layout: str) -> None:
    placement = Placement(workers=workers, workers_per_node=most, layout=layout)
    hosts = [f"n{node}" for node, count in enumerate(placement.per_node) for _ in range(count)]
    config = StrainConfig(placement=layout, workers_per_node=most)

    assert misplaced(config, hosts) == ""
    if workers > 1:
        lonely = [*hosts[:-1], "elsewhere"]
        found = [lonely.count(host) for host in dict.fromkeys(lonely)]
        assert bool(misplaced(config, lonely)) == (sorted(found, reverse=True) != list(placement.per_node))


@pytest.mark.parametrize(
    ("options", "hosts", "message"),
    [
        ({}, ["a", "a", "b"], ""),
        ({"workers_per_node": 2}, ["a", "a", "b"], ""),
        ({"workers_per_node": 2}, ["a", "b", "b"], ""),
        ({"placement": "spread"}, ["a", "a", "b"], ""),
        (
            {"workers_per_node": 1},
            ["node1", "node1", "node2"],
            "--workers-per-node 1 means 1+1+1",
        ),
        (
            {"placement": "spread"},
            ["a", "b", "b", "b"],
            "--placement",
        ),
        (
            {"placement": "spread", "workers_per_node": 3},
            ["a", "a", "a", "b"],
            "--workers-per-node",
        ),
        (
            {"workers_per_node": 2},
            list("abcdef"),
            "--workers-per-node 2 means 2+2+2",
        ),
    ],
)
def test_a_run_placed_otherwise_says_what_it_found(
    options: dict, hosts: list[str], message: str, golden: Golden
) -> None:
    golden(misplaced(StrainConfig(**options), hosts), message)


@pytest.mark.horovod
def test_the_trainer_ends_where_it_is_placed_otherwise(launch: Callable, tmp_path: Path) -> None:
    small = ("--dataset", "400", "--steps", "2", "--out", str(tmp_path / "run"))
    ended = launch("mpirun", 2, "--backend", "mpi", "--workers-per-node", "1", *small)

    assert ended.returncode != 0
    assert "error: 2 workers are on " in ended.stderr
    assert ", but --workers-per-node 1 means 1+1 on 2 nodes; place them so when launching" in ended.stderr
    assert not (tmp_path / "run").exists(), "before anything is recorded"


axes = {
    "batch": st.lists(st.sampled_from([8, 16, 32]), min_size=1, max_size=3),
    "cycle_time_ms": st.lists(st.sampled_from([None, 0.5, 1.0]), min_size=1, max_size=3),
    "lr_scaling": st.lists(st.sampled_from(["none", "sqrt"]), min_size=1, max_size=2),
    "bucket_mb": st.lists(st.sampled_from([None, 1.0]), min_size=1, max_size=2),
}


@given(
    varied=st.fixed_dictionaries({}, optional=axes),
    runtimes=st.lists(st.sampled_from(RUNTIMES), min_size=1, unique=True),
    workers=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    placements=st.lists(st.sampled_from(["fill", "spread"]), min_size=1, max_size=2, unique=True),
    per_node=st.lists(st.integers(1, 8), max_size=2, unique=True),
    baselines=st.lists(st.sampled_from(["plain", "wrapped"]), unique=True),
    repeats=st.integers(1, 3),
)
def test_cells_are_unique_valid_and_have_their_baselines(
    varied, runtimes, workers, placements, per_node, baselines, repeats
) -> None:
    study = StudyConfig(
        name="s",
        run=StrainConfig(study="s", partition="alpha", seconds=1),
        workers=tuple(workers),
        runtimes=tuple(runtimes),
        varied={name: tuple(values) for name, values in varied.items()},
        placements=tuple(placements),
        workers_per_node=tuple(per_node) or (4,),
        baselines=tuple(baselines),
        repeats=repeats,
        partitions={"alpha": find_partition("alpha")},
    )
    cells = study.cells()
    names = {(cell.label, cell.config.repeat) for cell in cells}

    assert len({cell.key for cell in cells}) == len(cells) == len(names)
    assert len(cells) % repeats == 0
    for cell in cells:
        assert cell.config == StrainConfig(**vars(cell.config)), "made without all checks, and valid all the same"
        assert cell.config.seed == 1 + cell.config.repeat
        assert cell.placement.workers == 1 or cell.runtime != "serial"
    alone = {(cell.runtime, cell.config.batch) for cell in cells if cell.placement.workers == 1}
    for cell in cells:
        if "plain" in baselines:
            assert ("serial", cell.config.batch) in alone
        if "wrapped" in baselines:
            assert (cell.runtime, cell.config.batch) in alone


def test_a_change_of_a_configuration_is_checked(golden: Golden) -> None:
    config = StrainConfig(seconds=1, batch=10)

    assert config.changed(batch=20) == replace(config, batch=20)
    with golden.raises(ConfigError, match="gloo"):
        config.changed(backend="mpi", transport="gloo")
    with golden.raises(TypeError):
        config.changed(bach=1)


def test_the_key_is_computed_once_and_does_not_depend_on_when() -> None:
    cell = Cell(config=StrainConfig(), runtime="serial", placement=Placement())
    key = cell.key

    assert cell.key is key
    assert Cell(config=StrainConfig(), runtime="serial", placement=Placement()) == cell
    assert replace(cell, identity="abc").key != key
    assert replace(cell).key == key


# ---------------------------------------------------------------------------------------------------- shipped studies


@pytest.mark.parametrize(
    ("name", "cores", "cells"),
    [
        ("nccl_vs_mpi", 2, 3 * (1 + 3 * 10)),
        ("strong_scaling", 2, 3 * (1 + 2 * 2)),
        ("strong_scaling", 8, 3 * (1 + 2 * 8)),
        ("weak_scaling", 4, 3 * 2 * (1 + 2 * 4)),
        ("batch_size", 2, 3 * 7 * (1 + 2)),
        ("knobs", 2, 3 * (1 + 2 * 3 * 3)),
        ("convergence", 2, 3 * (1 + 3)),
        ("placement", 2, 3 * (1 + 2 * 2 * 3)),
        ("checkpoint_cost", 2, 3 * 4 * (1 + 2)),
        ("accounting", 2, None),
        ("cycle_time", 2, None),
        ("laptop", 2, None),
        ("runtimes", 2, None),
    ],
)
def test_shipped_studies(
    name: str, cores: int, cells: int | None, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: cores)
    study = load_study(EXPERIMENTS / f"{name}.yaml")
    head = study.text.partition("\nstudy:")[0]

    assert study.name == name
    assert cells in (None, len(study.cells()))
    assert len({cell.key for cell in study.cells()}) == len(study.cells())
    golden(head, "experiments/", name)
    assert "?" in head.partition("\n")[0] or "what" in head.partition("\n")[0].lower(), "the question comes first"


def test_every_shipped_study_is_valid_and_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: 2)
    names = {path.stem for path in EXPERIMENTS.glob("*.yaml")} - {"search"}
    listed = (EXPERIMENTS / "README.md").read_text()

    for name in names:
        assert f"`{name}.yaml`" in listed, name
        assert load_study(EXPERIMENTS / f"{name}.yaml").cells()


def test_all_options_of_a_run_may_be_changed() -> None:
    config = StrainConfig()

    assert config.changed(**{name: getattr(config, name) for name in STRAIN.options}) == config


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeats: 2", "repeats: 99999999999999999999999", "64 bits"),
        ("repeats: 2", "repeats: 999999999999999999", "200000"),
        ("workers: [1, 2]", "workers: 99999999999", "99999999999 workers.*100000"),
        ("workers: [1, 2]", "workers: 1, widths: 1e3", r"study\.yaml.*1e3"),
        ("study: laptop", f"study: {'ü' * 101}", "202 bytes.*200"),
    ],
)
def test_a_slip_of_the_pen_is_refused_and_not_computed(
    tmp_path: Path, old: str, new: str, message: str, golden: Golden
) -> None:
    with golden.raises(ConfigError, match=message) as found:
        load_study(write(tmp_path, GOOD.replace(old, new)))
    assert str(found.value).startswith(str(tmp_path))


@pytest.mark.parametrize(("key", "value"), [("partition", "alpha"), ("hosts", "a"), ("runtime", "mpi/mpi")])
def test_a_value_that_is_said_20_000_times_takes_no_time(tmp_path: Path, key: str, value: str) -> None:
    many = f"{key}: [{f'{value}, ' * 20_000}{value}]"
    text = GOOD.replace("runtime: [horovod/mpi, horovod/gloo]", many) if key == "runtime" else f"{GOOD}{many}\n"
    started = time.process_time()
    with suppress(ConfigError):
        load_study(write(tmp_path, text))

    assert time.process_time() - started < 6, "most of it for PyYAML"


def test_a_cross_product_nobody_can_run_is_refused_before_it_is_expanded(tmp_path: Path, golden: Golden) -> None:
    many = ", ".join(map(str, range(1, 101)))
    text = GOOD.replace("workers:", f"batch: [{many}], threads: [{many}], fusion_mb: [{many}], workers:")
    with golden.raises(ConfigError, match="1000000.*200000"):
        load_study(write(tmp_path, text.replace("batch: 10, ", "")))
