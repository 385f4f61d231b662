"""Jobs of a study: every cell in exactly one, one placement each, all runtimes alternating, within time limits."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study.cluster.slurm import MARGIN, START_S, Allocation, allocate, time_limit_s
from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.study_file import StudyConfig

ALPHA = Partition(name="alpha", scheduler="slurm", nodes=None, gpus_per_node=8, cores_per_node=48, cores_per_worker=6)


def make_study(**changes) -> StudyConfig:
    values = {
        "name": "s",
        "run": StrainConfig(study="s", partition="alpha", seconds=1),
        "workers": (1, 2, 8, 10),
        "runtimes": ("horovod/mpi", "ddp/nccl"),
        "repeats": 3,
        "partitions": {"alpha": ALPHA},
    }
    return StudyConfig(**{**values, **changes})


def ten_seconds(cell: Cell) -> float:
    return 10.0


def test_one_job_for_each_placement() -> None:
    study = make_study()
    jobs = allocate(study.cells(), study.partitions, ten_seconds, seed=1)
    found = [(job.placement.per_node, job.nodes, len(job.tasks), len(job.cells), job.seconds) for job in jobs]

    assert found == [((1,), 1, 1, 9, 90.0), ((2,), 1, 1, 6, 60.0), ((8,), 1, 1, 6, 60.0), ((8, 2), 2, 1, 6, 60.0)]
    assert {cell.runtime for cell in jobs[0].cells} == {"serial", "horovod/mpi", "ddp/nccl"}, "baselines share one"
    assert {job.partition for job in jobs} == {"alpha"}
    assert allocate([], study.partitions, ten_seconds, seed=1) == ()


def test_runtimes_and_repeats_take_turns() -> None:
    study = make_study(runtimes=("horovod/mpi", "horovod/gloo", "ddp/nccl"), workers=(4,), baselines=())
    orders = []
    for seed in range(20):
        (job,) = allocate(study.cells(), study.partitions, ten_seconds, seed=seed)
        assert [cell.config.repeat for cell in job.cells] == [0] * 3 + [1] * 3 + [2] * 3, "one block per repeat"
        for repeat in range(3):
            assert len({cell.runtime for cell in job.cells[3 * repeat : 3 * repeat + 3]}) == 3
        orders.append(tuple(cell.runtime for cell in job.cells))

    assert len(set(orders)) > 10, "in an order that the seed decides"
    again = [allocate(study.cells(), study.partitions, ten_seconds, seed=3) for _ in range(2)]
    assert again[0] == again[1]


def test_fill_and_spread_share_a_job_where_they_are_the_same() -> None:
    study = make_study(workers=(4, 16), placements=("fill", "spread"), nodes=(2,), baselines=(), repeats=1)
    jobs = allocate(study.cells(), study.partitions, ten_seconds, seed=1)

    assert [(job.placement.per_node, len(job.cells)) for job in jobs] == [((4,), 2), ((2, 2), 2), ((8, 8), 4)]


def test_partitions_come_in_their_order() -> None:
    small = ALPHA.model_copy(update={"name": "small", "gpus_per_node": 4, "cores_per_node": 24})
    study = make_study(partitions={"small": small, "alpha": ALPHA}, repeats=1, workers=(8,), baselines=())
    jobs = allocate(study.cells(), study.partitions, ten_seconds, seed=1)

    assert [(job.partition, job.placement.per_node) for job in jobs] == [("small", (4, 4)), ("alpha", (8,))]


@pytest.mark.parametrize(
    ("expected_s", "longest_s", "limit_s"),
    [
        (0, None, 900),
        (400, None, 900),  # 1.5 x 400 + 300
        (401, None, 1200),
        (3600, None, 5700),
        (3600, 3600, 3600),
        (60, 600, 600),
    ],
)
def test_time_limits(expected_s: float, longest_s: float | None, limit_s: float) -> None:
    assert time_limit_s(expected_s, longest_s) == limit_s


def test_a_job_that_would_be_too_long_is_an_array() -> None:
    study = make_study(workers=(4,), runtimes=("horovod/mpi",), baselines=(), repeats=10)
    short = ALPHA.model_copy(update={"time_limit_s": 900.0})  # room for 400 expected seconds
    (job,) = allocate(study.cells(), {"alpha": short}, lambda cell: 100.0, seed=1)

    assert [len(task) for task in job.tasks] == [4, 4, 2]
    assert [cell.config.repeat for cell in job.cells] == list(range(10))
    assert (job.seconds, job.time_limit_s) == (1000.0, 900.0)


def test_a_cell_that_never_fits_has_a_task_of_its_own() -> None:
    study = make_study(workers=(4,), runtimes=("horovod/mpi",), baselines=(), repeats=3)
    short = ALPHA.model_copy(update={"time_limit_s": 600.0})
    (job,) = allocate(study.cells(), {"alpha": short}, lambda cell: 1000.0, seed=1)

    assert [len(task) for task in job.tasks] == [1, 1, 1]
    assert job.time_limit_s == 600.0


@given(
    workers=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    runtimes=st.lists(st.sampled_from(["horovod/mpi", "ddp/gloo", "serial"]), min_size=1, unique=True),
    repeats=st.integers(1, 4),
    layouts=st.lists(st.sampled_from(["fill", "spread"]), min_size=1, unique=True),
    longest_s=st.none() | st.floats(60, 5000),
    seconds=st.floats(0.1, 2000),
    seed=st.integers(0, 5),
)
def test_every_cell_is_in_one_task_of_its_placement(
    workers, runtimes, repeats, layouts, longest_s, seconds, seed
) -> None:
    study = make_study(
        workers=tuple(workers), runtimes=tuple(runtimes), repeats=repeats, placements=tuple(layouts), nodes=(4,)
    )
    partition = ALPHA.model_copy(update={"time_limit_s": longest_s})
    jobs: tuple[Allocation, ...] = allocate(study.cells(), {"alpha": partition}, lambda cell: seconds, seed=seed)

    assert Counter(cell.key for job in jobs for cell in job.cells) == Counter(cell.key for cell in study.cells())
    assert len({job.placement.per_node for job in jobs}) == len(jobs)
    for job in jobs:
        assert {cell.placement.per_node for cell in job.cells} == {job.placement.per_node}
        assert job.nodes == job.placement.nodes
        assert longest_s is None or job.time_limit_s <= longest_s
        assert all(job.tasks)
        if longest_s is not None:
            for task in job.tasks:
                assert len(task) == 1 or MARGIN * len(task) * seconds + START_S <= longest_s * (1 + 1e-9)
