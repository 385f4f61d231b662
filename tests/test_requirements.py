"""What `--require` accepts, what it finds unmet, and that a run which is not as required ends before its first step."""

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study import records
from horovod_study.config.options import Parser, add_run_options, run_values
from horovod_study.config.run import COMMUNICATION, PATHS, Requirement, asked_for, facts_of, requirements, unmet
from horovod_study.errors import ConfigError
from horovod_study.strain.options import STRAIN, StrainConfig


def rank(**more: Any) -> dict[str, Any]:
    return {
        "host": "node1",
        "cores": [0, 1],
        "threads": 1,
        "device": "cpu",
        "gpu": None,
        "lr": 4.7331e-4,
        "communication": {"cycle_time_ms": 0.05, "fusion_mb": 134.217728, "hierarchical": False, "groups": 3},
        **more,
    }


def effective(**more: Any) -> dict[str, Any]:
    return {
        "backend": "horovod",
        "transport": "mpi",
        "reduction": "flat",
        "workers": 2,
        "nodes": 1,
        "path": ["shared memory"],
        "path_reason": "",
        "settings": {"mpi_library": {"value": "/opt/lib/libmpi.so.40", "source": "loaded"}},
        "ranks_per_host": [2],
        "ranks": [rank(), rank()],
        **more,
    }


def faults(text: str, config: StrainConfig | None = None, **more: Any) -> list[str]:
    asked = asked_for(config or StrainConfig(), lr=4.7331e-4)
    return unmet(
        requirements(text, STRAIN.options),
        asked=asked,
        effective=effective(**more),
        environment={"mpi": "Open MPI 4.1.8"},
    )


def test_texts_become_requirements() -> None:
    assert requirements(
        "asked, path=shared-memory,ranks-per-host=2,hierarchical=off,cycle_time_ms=0.1", STRAIN.options
    ) == (
        Requirement(name="asked", value=True, text="asked"),
        Requirement(name="path", value="shared-memory", text="path=shared-memory"),
        Requirement(name="ranks_per_host", value=2, text="ranks_per_host=2"),
        Requirement(name="hierarchical", value=False, text="hierarchical=off"),
        Requirement(name="cycle_time_ms", value=0.1, text="cycle_time_ms=0.1"),
    )
    assert [each.value for each in requirements("path=shared-memory,path=tcp:eth0", STRAIN.options)] == [
        "shared-memory",
        "tcp:eth0",
    ]
    assert len(requirements("asked,asked,workers=2,workers=2.0", STRAIN.options)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "transprt=mpi",
            "transprt.*transport.*name=value",
        ),
        ("aksed", "aksed.*asked"),
        ("", "name=value"),
        ("asked,", ""),
        ("workers", r"workers.*e\.g.*workers=2"),
        ("transport=", r"transport=.*e\.g.*transport=gloo"),
        ("hierarchical", r"hierarchical.*e\.g.*hierarchical=true"),
        ("transport=mip", "mip.*mpi"),
        ("workers=two", "two"),
        ("workers=0", ""),
        ("lr=fast", "fast"),
        ("hierarchical=maybe", "hierarchical is .maybe"),
        (
            "path=infinband",
            "infinband.*infiniband",
        ),
        ("cores=shared", "shared"),
        ("backend=mpi,backend=ddp", "backend=mpi.*backend=ddp"),
    ],
)
def test_what_cannot_be_required_is_refused_before_anything_starts(text: str, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None):
        StrainConfig(require=text)


@given(st.sampled_from(sorted(facts_of(STRAIN.options))), st.text(max_size=8))
def test_any_text_is_a_requirement_or_one_line_that_says_why_not(name: str, value: str) -> None:
    try:
        found = requirements(f"{name}={value}", STRAIN.options)
    except ConfigError as error:
        assert str(error).startswith("run: require")
    else:
        assert found[0].name == name


def test_every_way_of_talking_can_be_required() -> None:
    assert set(COMMUNICATION) <= set(facts_of(STRAIN.options))


@pytest.mark.parametrize(
    "text",
    [
        *("backend=horovod", "transport=mpi", "reduction=flat", "workers=2", "nodes=1", "ranks_per_host=2"),
        *("path=shared-memory", "path=memory", "threads=1", "device=cpu", "lr=0.00047331", "mpi=4.1.8"),
        *("mpi=Open MPI", "mpi=/opt/lib", "cycle_time_ms=0.05", "fusion_mb=134.217728", "hierarchical=no", "groups=3"),
        "asked",
    ],
)
def test_facts_that_hold(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "changed", "fault"),
    [
        ("transport=gloo", {}, "transport=gloo"),
        ("workers=4", {}, "workers=4"),
        ("path=tcp", {}, "path=tcp"),
        (
            "path=infiniband",
            {"path": ["shared memory", "tcp:ib0"]},
            "path=infiniband",
        ),
        (
            "path=tcp:eth0",
            {"path": None, "path_reason": "node1: the system does not show"},
            "path=tcp:eth0",
        ),
        ("path=memory", {"path": []}, "path=memory"),
        ("path=shared-memory", {"path": ["memory"]}, "path=shared-memory"),
        (
            "ranks_per_host=2",
            {"ranks": [rank(), rank(), rank(host="node2")], "ranks_per_host": [2, 1]},
            "ranks_per_host=2",
        ),
        (
            "threads=1",
            {"ranks": [rank(), rank(threads=2, host="node2")]},
            "threads=1",
        ),
        ("threads=2", {}, "threads=2"),
        ("lr=1e-3", {}, "0.00047331"),
        ("device=cuda", {}, "device=cuda"),
        ("mpi=4.1.9", {}, "MPI 4.1.8 /opt/lib/libmpi.so.40"),
        ("cycle_time_ms=1", {}, "cycle_time_ms=1"),
        ("hierarchical=on", {}, "hierarchical=on"),
        ("ps_servers=1", {}, "ps_servers=1"),
        ("cores=own", {}, "cores=own"),
    ],
)
def test_facts_that_do_not_hold_are_named_with_what_was_found(
    text: str, changed: dict[str, Any], fault: str, golden: Golden
) -> None:
    golden(faults(text, **changed), fault)


def test_ways_are_told_apart_by_kind_and_name() -> None:
    mixed: dict[str, Any] = {"path": ["infiniband:mlx5_0", "p2p", "shared memory"]}
    for way in ("infiniband", "infiniband:mlx5_0", "p2p", "nvlink/p2p", "shared-memory", "memory"):
        assert faults(f"path={way}", **mixed) == []
    for way in ("infiniband:mlx5_1", "roce", "tcp", "socket", "ofi"):
        assert len(faults(f"path={way}", **mixed)) == 1
    assert faults("path=socket,path=tcp:eth0", path=["tcp:eth0"]) == []
    assert set(PATHS) == {way for way in PATHS if requirements(f"path={way}", STRAIN.options)}


def test_cores_of_other_hosts_are_no_company() -> None:
    assert faults("cores=own", ranks=[rank(), rank(host="node2")]) == []
    assert faults("cores=own", ranks=[rank(cores=[0]), rank(cores=[1])]) == []


def test_a_gpu_is_known_by_its_name_too(golden: Golden) -> None:
    gpu = {"name": "NVIDIA H100", "uuid": "GPU-1"}
    ranks = [rank(device="cuda:0", gpu=gpu), rank(device="cuda:1", gpu=gpu)]

    assert faults("device=cuda", ranks=ranks) == []
    assert faults("device=h100", ranks=ranks) == []
    golden(faults("device=A100", ranks=ranks), "device=A100", "cuda:0", "NVIDIA H100", "rank 0", "node1")  # fmt: skip


def test_asked_is_whatever_was_asked_for(golden: Golden) -> None:
    config = StrainConfig(backend="horovod", transport="gloo", cycle_time_ms=0.5, hierarchical=True, threads=2)

    assert [each.text for each in asked_for(config, lr=1e-3)] == [
        *("backend=horovod", "transport=gloo", "cycle_time_ms=0.5", "hierarchical=true", "threads=2", "lr=0.001"),
    ]
    golden(
        faults("asked,workers=2", config),
        "transport=gloo",
        "cycle_time_ms=0.5",
        "0.05",
        "hierarchical=true",
        "threads=2",
    )
    assert len(asked_for(StrainConfig(), lr=1e-3)) == 2, "nothing but the threads and the rate, which every run has"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["--require", "--steps", "5"], "asked"), (["--require", "workers=2"], "workers=2"), ([], None)],
)
def test_the_option_alone_means_asked(arguments: list[str], value: str | None) -> None:
    parser = Parser()
    add_run_options(parser)

    assert run_values(parser.parse_strictly(arguments)).get("require") == value


def test_one_worker_can_be_required_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    from horovod_study.train import main

    run = ("--dataset", "400", "--batch", "20", "--warmup-steps", "0", "--steps", "2", "--no-checkpoint-at-end")
    assert main([*run, "--require", "asked,workers=1,device=cpu", "--out", str(tmp_path / "one")]) == 0
    assert main([*run, "--require", "workers=2", "--out", str(tmp_path / "two")]) == 2

    golden.line(capsys.readouterr().err, "workers=2")
    failed = records.read_run(tmp_path / "two")
    assert (failed.status, failed.totals) == ("failed", {})
    golden(failed.reason, "workers=2")


# ------------------------------------------------------------------------------------------------ real workers
# Those that run as required are in test_traffic.py.

DATA = ("--dataset", "400", "--batch", "20", "--warmup-steps", "0", "--steps", "3", "--no-checkpoint-at-end")


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("launcher", "options", "code", "fault"),
    [
        ("mpirun", ("--backend", "mpi", "--require", "path=tcp"), 2, "path=tcp is required, but path is shared memory"),
        ("mpirun", ("--require", "backend=mpi"), 2, "backend=mpi is required, but backend is horovod"),
        ("horovodrun --gloo", ("--require", "path=memory"), 2, "path=memory is required, but path is tcp:lo"),
        # torchrun answers 1 whatever its workers answered
        ("torchrun", ("--require", "transport=mpi"), 1, "transport=mpi is required, but transport is gloo"),
    ],
)
def test_a_run_that_is_not_as_required_ends_before_its_first_step(
    launch: Launch, tmp_path: Path, launcher: str, options: tuple[str, ...], code: int, fault: str
) -> None:
    done = launch(launcher, 2, *DATA, *options, "--out", str(tmp_path / "run"))

    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.splitlines() if re.search(r"(^|>:|\]:)\s*error: ", line)]
    assert len(said) == 1
    assert f"error: {fault}; start the run as required, or change --require" in said[0]
    record = records.read_run(tmp_path / "run")
    assert (record.status, record.reason) == ("failed", f"{fault}; start the run as required, or change --require")
    assert all(records.read_steps(tmp_path / "run", number).num_rows == 0 for number in (0, 1))
