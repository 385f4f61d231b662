"""The plan of a study: what is to be run, in which jobs, what it takes, and what exceeds the budget."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.runtimes import LIBRARIES
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.ledger import Entry, Ledger
from horovod_study.studies.plan import SAMPLES_GUESS_PER_S, Plan, plan_study, rough_s
from horovod_study.studies.study_file import StudyConfig, load_study, sweep_of

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
ALPHA = Partition(name="alpha", scheduler="slurm", nodes=None, gpus_per_node=8, cores_per_node=48, cores_per_worker=6)
CPUS = Partition(name="cpus", scheduler="slurm", nodes=None, cores_per_node=128)
LOCAL = Partition(name="local", cores_per_node=4)


def make_study(*partitions: Partition, **changes) -> StudyConfig:
    chosen = partitions or (ALPHA,)
    values = {
        "name": "s",
        "run": StrainConfig(study="s", partition=chosen[0].name, seconds=10),
        "workers": (1, 8, 16),
        "runtimes": ("horovod/nccl",),
        "repeats": 2,
        "partitions": {each.name: each for each in chosen},
    }
    return StudyConfig(**{**values, **changes})


def ledger_of(study: StudyConfig, *, done: int = 0, failed: int = 0) -> Ledger:
    """Return a ledger whose first cells are done, the next ones failed, and the others missing."""
    states = ["done"] * done + ["failed"] * failed
    states += ["missing"] * (len(study.cells()) - len(states))
    entries = tuple(Entry(cell=cell, state=state) for cell, state in zip(study.cells(), states, strict=True))
    return Ledger(sweep=sweep_of(study, Path("runs")), entries=entries)


def plan_of(study: StudyConfig, *, past=(), retry: bool = True, **states: int) -> Plan:
    return plan_study(ledger_of(study, **states), past=past, retry=retry)


# ---------------------------------------------------------------------------------------------------- what it takes


def test_hours_of_whole_nodes() -> None:
    plan = plan_of(make_study())

    # two repeats: 13 s plain and 16 s wrapped on one node, 16 s on one, 16 s on two; guessed start-up included
    assert plan.seconds == 2 * (13 + 16 + 16 + 16)
    assert plan.gpu_hours == pytest.approx(2 * (8 * (13 + 16 + 16) + 16 * 16) / 3600)
    assert plan.core_hours is None
    assert [job.placement.per_node for job in plan.allocations] == [(1,), (8,), (8, 8)]


def test_hours_of_shared_nodes_and_of_cores() -> None:
    shared = Partition(**{**_fields(ALPHA), "exclusive": False})

    assert plan_of(make_study(shared, repeats=1)).gpu_hours == pytest.approx((13 + 16 + 8 * 16 + 16 * 16) / 3600)
    plan = plan_of(make_study(CPUS, repeats=1))
    assert plan.gpu_hours is None
    assert plan.core_hours == pytest.approx(128 * (13 + 16 * 3) / 3600)
    plan = plan_of(make_study(Partition(**{**_fields(CPUS), "exclusive": False, "cores_per_worker": 4}), repeats=1))
    assert plan.core_hours == pytest.approx(4 * (13 + 16 + 8 * 16 + 16 * 16) / 3600)


def _fields(partition: Partition) -> dict:
    return {name: getattr(partition, name) for name in Partition.model_fields}


def test_what_is_done_is_not_planned_and_teaches(golden: Golden) -> None:
    study = make_study(repeats=3)
    plan = plan_of(study, done=4, failed=2, past=[("serial", 1, 20.0), ("horovod/nccl", 8, 30.0)])
    without = plan_of(study, done=4, failed=2, retry=False)

    assert len(plan.cells) == 8 and len(without.cells) == 6
    assert plan.seconds == 2 * 20 + 6 * 30, "another count of the same runtime is the nearest that is known"
    assert plan.guessed == () and plan.unknown == 0
    assert without.guessed == ("serial", "horovod/nccl")
    golden(without.lines(), "horovod/nccl")


def test_cells_of_unknown_length_count_with_their_time_limit(tmp_path: Path, golden: Golden) -> None:
    file = make_study(run=StrainConfig(study="s", partition="alpha", dataset=str(tmp_path), epochs=2), timeout_s=120)
    steps = make_study(run=StrainConfig(study="s", partition="alpha", steps=950, batch=100), repeats=1)
    long = make_study(run=StrainConfig(study="s", partition="alpha", epochs=10000), repeats=1, timeout_s=600)

    plan = plan_of(file)
    assert (plan.unknown, plan.seconds) == (8, 8 * 120)
    golden("\n".join(plan.lines()), "2 min", "timeout_s")
    assert plan_of(steps).seconds == 3 + 3 * 6 + 4 * 10, "1,000 steps of 100 samples, 10,000 in a second"
    assert plan_of(steps).unknown == 0
    assert plan_of(long).seconds == 4 * 600, "no cell takes longer than it may"


def test_a_rough_guess() -> None:
    def rough(workers: int = 2, **options) -> float | None:
        return rough_s(
            Cell(
                config=StrainConfig(**options),
                runtime="ddp/gloo",
                placement=Placement(workers=workers, workers_per_node=workers),
            )
        )

    start = LIBRARIES["ddp"].start_up_s
    assert rough(seconds=7) == start + 7
    assert rough(steps=100, warmup_steps=0, batch=1000) == start + 100_000 / SAMPLES_GUESS_PER_S
    assert rough(epochs=4, dataset="100000") == start + 4 * 75_000 / 2 / SAMPLES_GUESS_PER_S
    assert rough(epochs=4, dataset="curves") is None


def test_cells_longer_than_any_job_are_named(golden: Golden) -> None:
    short = Partition(**{**_fields(ALPHA), "time_limit_s": 60.0})
    plan = plan_of(make_study(short, repeats=1), past=[("serial", 1, 20.0), ("horovod/nccl", 8, 90.0)])

    assert plan.too_long == 3
    assert [len(job.tasks) for job in plan.allocations] == [2, 1, 1]
    golden(plan.lines(), "3 of them")


@pytest.mark.parametrize(
    ("budget", "over"),
    [
        ({}, ()),
        ({"gpu_hours": 1}, ()),
        ({"gpu_hours": 0.1}, ("0.342 GPU hours of 0.1",)),
        ({"hours": 0.01, "gpu_hours": 0.1}, ("0.342 GPU hours of 0.1", "0.0339 hours of 0.01")),
        ({"core_hours": 0.1}, ()),  # it has none to do
    ],
)
def test_the_budget(budget: dict[str, float], over: tuple[str, ...]) -> None:
    plan = plan_of(make_study(budget=budget))

    assert plan.over == over
    text = "\n".join(plan.lines())
    assert ("; `run` asks before it starts" in text) == bool(over)
    assert ("within the budget of 1 GPU hours" in text) == (budget == {"gpu_hours": 1})


def test_the_order_of_cells_here_and_in_jobs() -> None:
    study = make_study(LOCAL, ALPHA, workers=(1, 2), repeats=3)
    plan = plan_of(study)
    here = [cell for cell in plan.cells if cell.placement.partition == "local"]

    assert plan.cells[: len(here)] == tuple(here), "this program's first"
    assert [cell.config.repeat for cell in here] == sorted(cell.config.repeat for cell in here), "in blocks"
    assert plan.cells[len(here) :] == tuple(cell for job in plan.allocations for cell in job.cells)
    assert {job.partition for job in plan.allocations} == {"alpha"}
    assert sorted(cell.key for cell in plan.cells) == sorted(cell.key for cell in study.cells())


# ---------------------------------------------------------------------------------------------------- what is read


def test_the_plan_as_it_is_read(golden: Golden) -> None:
    study = make_study(
        workers=(1, 2, 10),
        runtimes=("horovod/nccl", "ddp/nccl"),
        varied={"batch": (75, 1024)},
        budget={"gpu_hours": 5},
        repeats=3,
    )
    golden(
        plan_of(study, done=7, past=[("serial", 1, 13.0)]).lines(),
        "42 cells",
        "35 missing",
        "8 GPUs",
        "48 cores",
        "6 cores",
        "done/all",
        "horovod/nccl",
        "ddp/nccl",
        "  1                       1/6           1/6       1/6",
        "  2                                     1/6       1/6",
        "  10 on 2 nodes (8+2)                   1/6       1/6",
        "3 jobs",
        "1 worker",
        "1 node              15",
        "3 min 45 s",
        "15 min",
        "2 workers",
        "1 node             10",
        "2 min 40 s",
        "10 workers",
        "35 cells",
        "9 min 5 s",
        "1.57 GPU",
        "5 GPU",
    )


def test_the_plan_of_this_machine(golden: Golden) -> None:
    study = make_study(LOCAL, workers=(1, 2), runtimes=("mpi/mpi",))

    golden(
        plan_of(study).lines(),
        "6 cells",
        "6 missing",
        "4 cores",
        "1 core",
        "done/all",
        "mpi/mpi",
        "  1           0/2      0/2",
        "  2                    0/2",
        "1 min 22 s",
    )
    assert plan_of(study, done=6).lines()[-2:] == ["", "nothing to do"]


@pytest.mark.slow
def test_thousands_of_cells_are_counted() -> None:
    study = make_study(workers=tuple(range(1, 60)), varied={"batch": tuple(range(1, 60))}, repeats=3)
    lines = plan_of(study).lines()

    assert len(study.cells()) == 59 * 60 * 3
    assert len(lines) < 120
    assert "  and 19 more placements" in lines
    assert max(map(len, lines)) <= 120


def test_many_nodes_are_told_briefly() -> None:
    lines = plan_of(make_study(CPUS, workers=(128 * 9 + 5,), baselines=())).lines()

    assert "  1157 on 10 nodes (128x9+5)           0/2" in lines


def test_as_json() -> None:
    study = make_study(repeats=1, budget={"gpu_hours": 0.01})
    content = json.loads(json.dumps(plan_of(study, done=1).document()))

    assert content["study"] == "s" and content["to_do"] == 3 and content["counts"] == {"done": 1, "missing": 3}
    assert [each["state"] for each in content["cells"]] == ["done", "missing", "missing", "missing"]
    assert [each["place"] for each in content["cells"]] == [None, 0, 1, 2]
    assert content["cells"][3]["placement"] == {
        "partition": "alpha",
        "workers": 16,
        "workers_per_node": 8,
        "per_node": [8, 8],
    }
    assert [job["tasks"] for job in content["jobs"]] == [[[cell.key]] for cell in study.cells()[1:]]
    assert content["jobs"][0]["time_limit_s"] == 900
    assert content["over_budget"] and content["guessed"] == ["horovod/nccl"]
    assert content["partitions"]["alpha"] == {
        "scheduler": "slurm",
        "gpus_per_node": 8,
        "cores_per_node": 48,
        "workers_per_node": 8,
    }


@given(done=st.integers(0, 8), failed=st.integers(0, 3), retry=st.booleans())
def test_what_is_planned_is_what_is_not_done(done: int, failed: int, retry: bool) -> None:
    study = make_study(LOCAL, ALPHA, workers=(1, 2), repeats=2)
    ledger = ledger_of(study, done=done, failed=min(failed, len(study.cells()) - done))
    plan = plan_study(ledger, past=[], retry=retry)

    assert sorted(cell.key for cell in plan.cells) == sorted(cell.key for cell in ledger.to_do(retry=retry))
    assert plan.seconds >= 0 and plan.lines()


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.yaml") if path.stem != "search"))
def test_every_shipped_study_can_be_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: 2)
    study = load_study(EXPERIMENTS / f"{name}.yaml")
    plan = plan_of(study)

    assert not plan.over and not plan.unknown
    assert len(plan.cells) == len(study.cells())
    assert max(map(len, plan.lines())) <= 140
    json.dumps(plan.document())


def test_one_worker_on_a_named_node_is_told_in_plain_words() -> None:
    study = make_study(
        CPUS, workers=(4,), placements=("list",), hosts=("node3", "node7"), workers_per_node=(2,), baselines=("plain",)
    )
    lines = [line.rpartition("  ")[0].strip() for line in plan_of(study).lines()]

    assert any(line.startswith("1 worker on node3  ") for line in lines), lines
    assert any(line.startswith("4 workers on node3 and node7 (2+2)  ") for line in lines), lines
