"""Launch detection, settings, and the parts of the backends that need no second process."""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden
from torch import nn

from horovod_study.comm import builds, detect, settings
from horovod_study.comm.base import FlatGradients, SerialBackend, choose_reduction, fail_together, require_parity
from horovod_study.comm.horovod import HorovodBackend, horovod_places
from horovod_study.comm.launch import (
    Launch,
    loaded_library,
    meeting_at,
    meeting_point,
    own_library,
    require_connection,
    require_interfaces,
    require_launchers_mpi,
)
from horovod_study.comm.mpi import Bucket, GradientBuckets, add_in_order, shares
from horovod_study.errors import BackendError, DataError, StudyError
from horovod_study.runtimes import CARRIED
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import StrainConfig


@pytest.mark.parametrize(
    ("environment", "launcher", "rank", "workers"),
    [
        ({}, "none", 0, 1),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "horovodrun --gloo", 1, 2),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun", 3, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "mpirun", 0, 1),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun", 0, 2),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "none", 0, 1),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, "srun", 5, 8),
        # A batch script, and a shell in an allocation: no step, or one of its own.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8"}, "none", 0, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, "none", 0, 1),
        # mpirun starts its daemons by srun, and torchrun can be started by either.
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "8",
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
            },
            "mpirun",
            1,
            2,
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "3", "WORLD_SIZE": "4"},
            "torchrun",
            3,
            4,
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "RANK": "3",
                "WORLD_SIZE": "4",
                "TORCHELASTIC_RUN_ID": "none",
            },
            "torchrun",
            3,
            4,
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "mpirun", 1, 2),
        ({"RANK": "0"}, "none", 0, 1),
    ],
)
def test_launchers_are_recognised(environment: dict[str, str], launcher: str, rank: int, workers: int) -> None:
    found = detect(environment)

    assert (found.launcher, found.rank, found.workers) == (launcher, rank, workers)


def test_ranks_meet_where_the_environment_says() -> None:
    assert meeting_point({}) is None
    assert meeting_point({"MASTER_ADDR": "n1"}) is None
    assert meeting_point({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}) == ("n1", 29500)
    for wrong in ("", "x", "0", "65536", "-1"):
        with pytest.raises(BackendError, match=r"MASTER_PORT is "):
            meeting_point({"MASTER_ADDR": "n1", "MASTER_PORT": wrong})


def test_a_meeting_that_fails_says_where_and_what_to_do(golden: Golden) -> None:
    taken = RuntimeError("The server socket has failed to listen. port: 7, code: -98, name: EADDRINUSE")
    with golden.raises(BackendError, match="port 7.*n1.*MASTER_PORT"), meeting_at("n1", 7, 0):
        raise taken
    with golden.raises(BackendError, match="rank 1.*n1:7.*rank 0"), meeting_at("n1", 7, 1):
        raise RuntimeError("timed out\nException raised from")


def test_a_network_interface_that_is_not_there_is_named() -> None:
    require_interfaces({}, "GLOO_SOCKET_IFNAME")
    require_interfaces({"GLOO_SOCKET_IFNAME": "lo"}, "GLOO_SOCKET_IFNAME")
    with pytest.raises(
        BackendError, match=r"GLOO_SOCKET_IFNAME is 'lo,ib9', but .* has no network interface ib9; it ha"
    ):
        require_interfaces({"GLOO_SOCKET_IFNAME": "lo,ib9"}, "GLOO_SOCKET_IFNAME")


def test_ranks_of_srun_without_a_connection_for_mpi_are_refused(golden: Golden) -> None:
    launch = Launch(launcher="srun", rank=1, workers=2, backend="horovod")

    require_connection(launch, {"PMIX_RANK": "1"})
    require_connection(launch, {"PMI_FD": "7"})
    require_connection(Launch(launcher="mpirun", rank=1, workers=2, backend="horovod"), {})
    with golden.raises(BackendError, match="2 workers.*MPI.*--mpi=pmix"):
        require_connection(launch, {"SLURM_PROCID": "1"})


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), min_size=1, max_size=4, unique_by=lambda x: x[0])
)
def test_places_are_those_that_horovodrun_gives(counts: list[tuple[str, int]]) -> None:
    hosts = pytest.importorskip("horovod.runner.common.util.hosts")
    total = sum(count for _, count in counts)
    theirs = hosts.get_host_assignments([hosts.HostInfo(name, count) for name, count in counts], total)

    ours = horovod_places([name for name, count in counts for _ in range(count)])

    for own, their in zip(ours, theirs, strict=True):
        assert own | {"cross_rank": 0} == {name: getattr(their, name) for name in own} | {"cross_rank": 0}
        # They count the hosts that have such a rank in the order of the list, and so do we.
        assert own["cross_rank"] == their.cross_rank


def test_places_of_ranks_that_are_dealt_out_in_turn() -> None:
    places = horovod_places(["a", "b", "a"])

    assert [(0, 2), (0, 1), (1, 2)] == [(each["local_rank"], each["local_size"]) for each in places]
    assert [(0, 2), (1, 2), (0, 1)] == [(each["cross_rank"], each["cross_size"]) for each in places]


def test_what_auto_becomes() -> None:
    assert detect({}).backend == "serial"
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).backend == "ddp"
    assert detect({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).backend == "horovod"


def test_shipped_settings_are_set_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    effective = settings.apply("horovod/mpi", config=StrainConfig())

    assert environment == CARRIED["horovod/mpi"][1].shipped
    assert effective["HOROVOD_CYCLE_TIME"] == {"value": environment["HOROVOD_CYCLE_TIME"], "source": "shipped"}
    assert effective["HOROVOD_FUSION_THRESHOLD"]["source"] == "library default"


def test_the_user_wins_over_shipped_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HOROVOD_CYCLE_TIME": "7"}
    monkeypatch.setattr(os, "environ", environment)
    effective = settings.apply("horovod/mpi", config=StrainConfig())

    assert environment["HOROVOD_CYCLE_TIME"] == "7"
    assert effective["HOROVOD_CYCLE_TIME"] == {"value": "7", "source": "user"}


def test_a_setting_the_build_does_not_know_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    effective = settings.apply("horovod/mpi", config=StrainConfig(), unknown=["HOROVOD_IDLE_CYCLE_TIME"])

    assert "HOROVOD_IDLE_CYCLE_TIME" not in environment
    assert effective["HOROVOD_IDLE_CYCLE_TIME"] == {"value": None, "source": "not in this build"}


def test_horovod_defaults_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    effective = settings.apply("horovod/mpi", config=StrainConfig(horovod_defaults=True))

    assert environment == {}
    assert {each["source"] for each in effective.values()} == {"library default"}
    assert effective["HOROVOD_CYCLE_TIME"]["value"] == "1"


def test_an_option_wins_over_the_environment_and_shipped_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HOROVOD_CYCLE_TIME": "7"}
    monkeypatch.setattr(os, "environ", environment)
    config = StrainConfig(
        cycle_time_ms=0.5, fusion_mb=0.25, single_copy=True, hierarchical=False, yield_when_idle=False
    )
    effective = settings.apply("horovod/mpi", config=config)

    asked = {name: each["value"] for name, each in effective.items() if each["source"] == "asked"}
    assert asked == {
        "HOROVOD_CYCLE_TIME": "0.5",
        "HOROVOD_FUSION_THRESHOLD": "250000",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "OMPI_MCA_mpi_yield_when_idle": "0",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "cma",
    }
    assert asked == {name: environment[name] for name in asked}


@pytest.mark.parametrize(
    ("runtime", "options", "message"),
    [
        ("ddp/gloo", {"cycle_time_ms": 1}, "cycle_time_ms.*ddp/gloo"),
        ("horovod/mpi", {"thread_priority": "slice"}, "thread_priority.*horovod/mpi"),
        ("horovod/gloo", {"ps_servers": 2}, "ps_servers.*horovod/gloo"),
        ("mpi/mpi", {"static_graph": True}, "static_graph.*mpi/mpi"),
        ("mpi/mpi", {"bucket_mb": 1.0, "reduction": "flat"}, "bucket_mb.*reduction flat"),
        ("horovod/gloo", {"groups": 2, "reduction": "flat"}, "groups.*reduction flat"),
    ],
)
def test_an_option_without_effect_is_refused(
    runtime: str, options: dict[str, object], message: str, golden: Golden
) -> None:
    with golden.raises(BackendError, match=message):
        settings.apply(runtime, config=StrainConfig(**options))


def test_an_option_the_build_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(os, "environ", {})
    with golden.raises(BackendError, match="idle_cycle_time_ms"):
        settings.apply("horovod/mpi", config=StrainConfig(idle_cycle_time_ms=5), unknown=["HOROVOD_IDLE_CYCLE_TIME"])


def test_only_settings_that_matter_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert set(settings.apply("mpi/mpi", config=StrainConfig())) == {
        "OMPI_MCA_mpi_yield_when_idle",
        "OMPI_MCA_btl_vader_single_copy_mechanism",
    }
    assert not any(name.startswith("OMPI") for name in settings.apply("horovod/gloo", config=StrainConfig()))


def test_flat_gradients_are_the_gradients() -> None:
    torch.manual_seed(0)
    model, twin = StressCNN(), StressCNN()
    twin.load_state_dict(model.state_dict())
    curves = torch.randn(4, 3, 201)
    flat = FlatGradients(list(model.parameters()))
    for each in (model, twin):
        each(curves).square().sum().backward()

    buffer = flat.pack()
    assert buffer.shape == (153_441,)
    assert torch.equal(buffer, torch.cat([parameter.grad.reshape(-1) for parameter in twin.parameters()]))
    buffer.mul_(0.5)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad * 0.5), "what happens to the buffer happens to the gradients"


def test_flat_gradients_are_shares_of_the_mean() -> None:
    torch.manual_seed(0)
    model, twin = StressCNN(), StressCNN()
    twin.load_state_dict(model.state_dict())
    flat, curves = FlatGradients(model.parameters(), workers=4), torch.randn(4, 3, 201)
    for _ in range(2):  # what the step before has left in the buffer does not count
        for each in (model, twin):
            each.zero_grad()
            each(curves).square().sum().backward()
    gradients = torch.cat([parameter.grad.reshape(-1) for parameter in twin.parameters()])

    assert torch.equal(flat.pack(), gradients / 4)
    assert torch.equal(flat.pack(), gradients / 4), "packing what is packed changes nothing"
    assert flat.norm2.item() == pytest.approx((gradients / 4).double().square().sum().item(), rel=1e-5)


def test_a_parameter_without_a_gradient_is_not_averaged_as_what_it_was(golden: Golden) -> None:
    model = StressCNN()
    flat = FlatGradients(model.parameters(), workers=2)
    model(torch.randn(4, 3, 201)).square().sum().backward()
    next(model.parameters()).grad = None

    with golden.raises(BackendError):
        flat.pack()


def test_the_norm_of_the_local_gradient_tells_what_is_not_a_number() -> None:
    model = nn.Linear(3, 2)
    flat = FlatGradients(model.parameters(), workers=2)
    assert flat.norm2 is None
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.bias.grad[1] = float("nan")
    flat.pack()

    assert not torch.isfinite(flat.norm2)


def test_gradients_leave_in_buckets_in_reverse_order() -> None:
    torch.manual_seed(0)
    model, twin = StressCNN(), StressCNN()
    twin.load_state_dict(model.state_dict())
    curves = torch.randn(4, 3, 201)
    sent: list[Bucket] = []
    buckets = GradientBuckets(model.parameters(), workers=2, bucket_bytes=10_000, send=sent.append)
    for _ in range(2):  # the second step must begin like the first
        sent.clear()
        model.zero_grad()
        model(curves).square().sum().backward()
        assert sent == buckets.buckets, "all of them during backward, in the order of their numbers"
        buckets.require_all_sent()
    twin(curves).square().sum().backward()

    expected = torch.cat([parameter.grad.reshape(-1) for parameter in reversed(list(twin.parameters()))]) / 2
    assert torch.equal(buckets.buffer, expected)
    assert all(
        torch.equal(mine.grad, other.grad / 2)
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True)
    )
    edges = [(bucket.start, bucket.stop) for bucket in buckets.buckets]
    assert edges[0][0] == 0 and edges[-1][1] == 153_441
    assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    assert all((stop - start) * 4 >= 10_000 for start, stop in edges[:-1])
    assert len(edges) > 1


def test_one_bucket_holds_a_small_model() -> None:
    buckets = GradientBuckets(StressCNN().parameters(), workers=2, bucket_bytes=25e6, send=lambda _: None)

    assert buckets.buckets == [Bucket(0, 0, 153_441)]


def test_a_parameter_without_a_gradient_is_not_waited_for(golden: Golden) -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    buckets = GradientBuckets(model.parameters(), workers=2, bucket_bytes=1, send=lambda _: None)
    model[1](torch.ones(1, 2)).sum().backward()

    with golden.raises(BackendError):
        buckets.require_all_sent()


@given(total=st.integers(1, 1000), servers=st.integers(1, 9))
def test_the_shares_of_servers_tile_the_buffer(total: int, servers: int) -> None:
    parts = shares(total, servers)

    assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])]
    assert parts[-1][1] == total
    assert max(last - first for first, last in parts) - min(last - first for first, last in parts) <= 1


@given(st.integers(2, 6), st.integers(0, 2**31))
def test_a_server_adds_in_the_order_of_ranks(workers: int, seed: int) -> None:
    rows = torch.randn(workers, 5, generator=torch.Generator().manual_seed(seed)) * 1e3
    expected = rows[0].clone()
    for row in rows[1:]:
        expected += row
    for rank in range(workers):
        own = rows[rank].clone()
        add_in_order(own, torch.cat([rows[:rank], rows[rank + 1 :]]), rank)

        assert torch.equal(own, expected), "to the last bit, whichever rank the server is"


@pytest.mark.parametrize(
    ("options", "workers", "size", "hooks_asked", "flat_because", "value", "source"),
    [
        ({}, 2, 613_764, False, "", "flat", "chosen: gradients of 0.61 MB are below 4 MB"),
        ({}, 2, 4_000_000, False, "", "hooks", "chosen: gradients of 4.00 MB are not below 4 MB"),
        ({}, 2, 613_764, True, "", "hooks", "chosen: an option that only hooks have was given"),
        ({}, 2, 4_000_000, False, "no hooks in fp16", "flat", "chosen: no hooks in fp16"),
        ({}, 1, 4_000_000, False, "", "none", "one worker averages nothing"),
        ({"reduction": "hooks"}, 1, 10, False, "", "none", "one worker averages nothing"),
        ({"reduction": "hooks"}, 2, 10, False, "", "hooks", "asked"),
        ({"reduction": "flat"}, 2, 10**9, False, "", "flat", "asked"),
    ],
)
def test_the_reduction_fits_the_model(
    options: dict[str, str], workers: int, size: int, hooks_asked: bool, flat_because: str, value: str, source: str
) -> None:
    chosen = choose_reduction(
        StrainConfig(**options), workers, size, hooks_asked=hooks_asked, flat_because=flat_because
    )

    assert chosen == (value, {"value": value, "source": source})


def test_a_library_that_packs_by_itself_takes_hooks_for_any_model(golden: Golden) -> None:
    chosen = choose_reduction(StrainConfig(), 2, 613_764, hooks_because="its buckets cost less")

    golden(chosen, "hooks", "value", "source")


def test_captured_steps_have_one_flat_buffer_whatever_the_library_would_rather_have(golden: Golden) -> None:
    config = StrainConfig(cuda_graphs=True)
    chosen = choose_reduction(config, 2, 100_000_000, hooks_because="its buckets cost less")

    golden(chosen, "flat", "value", "source", "CUDA")
    assert choose_reduction(config, 1, 1, hooks_asked=True)[0] == "none"
    with golden.raises(BackendError, match="cuda_graphs.*CUDA"):
        choose_reduction(config, 2, 1, hooks_asked=True)


def test_packing_and_exchange_make_a_synchronisation() -> None:
    """Of a worker alone both do nothing; what others do is in their leaves, and seen with two ranks."""
    backend = SerialBackend(StrainConfig(), Launch(rank=0, workers=1, launcher="none", backend="serial"))
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 2.0)
    backend.pack_gradients()
    backend.exchange()

    assert torch.equal(parameter.grad, torch.full((3,), 2.0))
    assert not backend.capturable


def test_gradients_that_kernels_wrote_into_the_buffer_are_measured_and_not_divided_again() -> None:
    model = nn.Linear(2, 1)
    flat = FlatGradients(model.parameters(), workers=2)
    flat.buffer.copy_(torch.tensor([1.0, 2.0, 2.0]))
    flat.measure()

    assert flat.norm2 is not None and flat.norm2.item() == 9.0
    assert torch.equal(flat.buffer, torch.tensor([1.0, 2.0, 2.0]))


def test_the_loaded_mpi_is_read_off_the_maps(tmp_path: Path) -> None:
    line = "7f00-7f01 r-xp 00000000 fe:00 12 "
    maps = tmp_path / "maps"
    maps.write_text(
        f"{line}/env/lib/libmpi_cxx.so.40\n{line}/env/mpi4py/MPI.so\n{line}/env/horovod/torch/mpi_lib_v2.so\n"
        f"{line}/opt/site 4/lib/libmpi.so.40.30.8\n7f02-7f03 rw-p 00000000 00:00 0 \n"
    )
    assert loaded_library(maps) == "/opt/site 4/lib/libmpi.so.40.30.8"

    maps.write_text(f"{line}/opt/mpich/lib/libmpich.so.12\n")
    assert loaded_library(maps) == "/opt/mpich/lib/libmpich.so.12"

    maps.write_text(f"{line}/lib/libc.so.6\n")
    assert loaded_library(maps) is None
    assert loaded_library(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        ("mpirun", "2 workers.*MPI"),
        ("srun", "--mpi=pmix.*MPI.*MPI's"),
        ("torchrun", "MPI"),
    ],
)
def test_workers_that_mpi_does_not_know_of_are_refused(launcher: str, message: str, golden: Golden) -> None:
    launch = Launch(launcher=launcher, rank=1, workers=2, backend="horovod")
    require_launchers_mpi(launch, 2, "Horovod")
    require_launchers_mpi(Launch(launcher="none", rank=0, workers=1, backend="serial"), 1, "Horovod")

    with golden.raises(BackendError, match=message):
        require_launchers_mpi(launch, 1, "Horovod")


def make_build(folder: Path, name: str) -> None:
    (folder / name / "horovod").mkdir(parents=True)
    (folder / name / "horovod" / "__init__.py").touch()


@pytest.fixture
def no_horovod_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    monkeypatch.setattr(sys, "path", sys.path.copy())


def test_a_build_of_horovod_is_found_before_the_installed_one(tmp_path: Path, no_horovod_yet: None) -> None:
    for name in ("mpi", "nccl", ".half-made"):
        make_build(tmp_path, name)
    (tmp_path / "empty").mkdir()

    assert builds.available(tmp_path) == ["mpi", "nccl"]
    assert builds.select(None, folder=tmp_path) == {"value": None, "source": "installed"}
    assert builds.select("mpi", folder=tmp_path) == {"value": "mpi", "source": "asked"}
    assert importlib.util.find_spec("horovod").origin == str(tmp_path / "mpi" / "horovod" / "__init__.py")


def test_a_transport_finds_the_build_of_its_name(tmp_path: Path, no_horovod_yet: None, golden: Golden) -> None:
    make_build(tmp_path, "nccl")

    assert builds.select(None, transport="mpi", folder=tmp_path) == {"value": None, "source": "installed"}
    golden(builds.select(None, transport="nccl", folder=tmp_path), "value", "nccl", "source")


def test_an_unknown_build_is_refused_with_those_there_are(tmp_path: Path, golden: Golden) -> None:
    make_build(tmp_path, "nccl")
    with pytest.raises(BackendError) as caught:
        builds.select("ncl", folder=tmp_path)
    golden(str(caught.value), "horovod_build", "ncl", tmp_path, 'BUILDS="nccl')
    with golden.raises(BackendError, match="/none"):
        builds.select("mpi", folder=tmp_path / "none")


def test_a_build_cannot_replace_a_loaded_horovod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    make_build(tmp_path, "mpi")
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(__file__="/site/horovod/__init__.py"))

    with golden.raises(BackendError, match=r"/site/horovod/__init__\.py"):
        builds.select("mpi", folder=tmp_path)


@pytest.mark.parametrize(
    ("metadata", "by"),
    [
        ('{"pytorch": "2.11.0", "gpu_allreduce": "host", "dummy": "none"}', "host"),
        ('{"pytorch": "2.11.0", "dummy": "none"}', None),
        ("{", None),
        ("[]", None),
        (None, None),
    ],
)
def test_a_build_says_what_it_reduces_gpu_tensors_with(metadata: str | None, by: str | None, tmp_path: Path) -> None:
    if metadata is not None:
        (tmp_path / "metadata.json").write_text(metadata)

    assert builds.gpu_allreduce(tmp_path) == by


@pytest.mark.parametrize(
    ("by", "transport", "cuda_built", "aware", "message"),
    [
        ("host", "mpi", True, False, None),
        ("host", "gloo", True, False, None),
        ("NCCL", "nccl", True, False, None),
        ("MPI", "mpi", True, True, None),
        (
            "MPI",
            "mpi",
            True,
            False,
            r"gives MPI pointers to GPU memory, and .* does not take them; leave --horovod-build",
        ),
        (
            "MPI",
            "gloo",
            True,
            False,
            r"gives tensors on a GPU to MPI alone, but this run was launched over Gloo; launch",
        ),
        (
            "none",
            "mpi",
            False,
            False,
            r"takes no tensors on a GPU, it was compiled without CUDA; load the CUDA toolkit",
        ),
        (None, "mpi", False, False, r"takes no tensors on a GPU"),
        (None, "mpi", True, False, r"gives MPI pointers to GPU memory"),
    ],
)
def test_a_horovod_that_cannot_average_on_a_gpu_is_refused_in_time(
    by: str | None,
    transport: str,
    cuda_built: bool,
    aware: bool,
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "torch").mkdir()
    if by is not None:
        (tmp_path / "metadata.json").write_text(f'{{"gpu_allreduce": "{by}"}}')
    monkeypatch.setattr("horovod_study.comm.horovod.cuda_aware", lambda: {"value": aware, "source": "a test"})
    hvd = SimpleNamespace(
        __file__=str(tmp_path / "torch" / "__init__.py"),
        nccl_built=lambda: transport == "nccl",
        cuda_built=lambda: cuda_built,
    )
    backend = SimpleNamespace(_hvd=hvd, transport=transport, settings={})

    if message is None:
        HorovodBackend._check_gpu_tensors(backend)
        assert backend.settings["gpu_allreduce"] == {"value": by, "source": "loaded"}
    else:
        with pytest.raises(BackendError, match=message):
            HorovodBackend._check_gpu_tensors(backend)


def test_the_mpi_of_the_environment_itself(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    assert own_library(tmp_path) is None

    library = tmp_path / "lib" / "libmpi.so.40"
    library.touch()
    assert own_library(tmp_path) == library


def serial() -> SerialBackend:
    return SerialBackend(StrainConfig(), detect({}))


def test_serial_refuses_several_workers(golden: Golden) -> None:
    launch = Launch(launcher="mpirun", rank=0, workers=2, backend="horovod")
    with golden.raises(BackendError, match="--backend"):
        SerialBackend(StrainConfig(), launch)


class TwoRanks(SerialBackend):
    """Rank 0 of two, the other one answering as told."""

    workers = 2

    def __init__(self, other: object) -> None:
        super().__init__(StrainConfig(), detect({}))
        self._other = other

    def gather(self, value: object) -> list[object]:
        return [value, self._other]


def test_a_failure_of_the_other_rank_is_everybodys(golden: Golden) -> None:
    with (
        golden.raises(StudyError, match="rank 1.*/data"),
        fail_together(TwoRanks("/data: no such data set")),
    ):
        pass


def test_a_failure_of_all_is_told_without_a_rank() -> None:
    with pytest.raises(StudyError, match=r"^same$"), fail_together(TwoRanks("same")):
        raise DataError("same")


def test_no_failure_no_error() -> None:
    with fail_together(TwoRanks(None)):
        pass


def test_a_bug_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError), fail_together(serial()):
        raise ZeroDivisionError


def test_parity_names_the_first_difference() -> None:
    other = {"host": "node2", "batch": 50, "seed": 1}
    with pytest.raises(BackendError, match=r"rank 1 on node2 has batch 50, rank 0 on \S+ has 75; start all ranks with"):
        require_parity(TwoRanks(other), {"batch": 75, "seed": 1})
    require_parity(TwoRanks({**other, "batch": 75}), {"batch": 75, "seed": 1})
