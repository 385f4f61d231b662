"""Sites: the nodes of a Slurm job, and where the workers of a placement go."""

import itertools
import os
import shutil
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study.cluster.launch import (
    PORTS,
    Site,
    expand_counts,
    expand_nodelist,
    free_port,
    hosts_of_allocation,
    site_of,
)
from horovod_study.config.doors import accept
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Placement
from horovod_study.errors import ConfigError, StudyError

HERE = "here"


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch):
    """Names are those of this file: asking a name server for them takes seconds where there is none."""
    monkeypatch.setattr("horovod_study.cluster.launch.this_host", lambda name: name == HERE)


def hosts(*slots: int) -> tuple[Host, ...]:
    return tuple(Host(name=f"node{number + 1}", slots=count) for number, count in enumerate(slots))


def pair(**options) -> Partition:
    return Partition(**{"name": "pair", "scheduler": "ssh", "hosts": hosts(2, 2), "cores_per_node": 1, **options})


def slurm(**options) -> Partition:
    return Partition(**{"name": "alpha", "scheduler": "slurm", "nodes": 4, "cores_per_node": 8, **options})


def job(nodelist: str, tasks: str | None = None, **more: str) -> dict[str, str]:
    counted = {} if tasks is None else {"SLURM_TASKS_PER_NODE": tasks}
    return {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": nodelist, **counted, **more}


# ---------------------------------------------------------------------- what Slurm writes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09],gpu5", ["n1", "n2", "n3", "n07", "n08", "n09", "gpu5"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("rack[1-2]-node[01-02].cluster", [f"rack{r}-node0{n}.cluster" for r in (1, 2) for n in (1, 2)]),
        ("b,a,b2", ["b", "a", "b2"]),
        ("n[5,3]", ["n5", "n3"]),
    ],
)
def test_a_list_of_nodes_is_written_out_in_its_order(text, names):
    assert names == expand_nodelist(text)


@pytest.mark.parametrize("text", ["", "n[1-", "n[1-3]]", "n[]", "n[a-b]", "n[3-1]", "a,,b", "a b", "n[1-2-3]", ",a"])
def test_what_is_no_list_of_nodes_is_refused(text, golden):
    with golden.raises(StudyError):
        expand_nodelist(text)


def compressed(names: list[tuple[str, int, int]]) -> str:
    """Return a list as Slurm would write it: neighbours of the same prefix and width in one pair of brackets."""
    parts: list[tuple[str, list[str]]] = []
    for prefix, number, width in names:
        if parts and parts[-1][0] == prefix:
            parts[-1][1].append(str(number).zfill(width))
        else:
            parts.append((prefix, [str(number).zfill(width)]))
    texts = []
    for prefix, numbers in parts:
        ranges = [[numbers[0], numbers[0]]]
        for before, each in itertools.pairwise(numbers):
            if int(each) == int(before) + 1 and len(each) == len(before):
                ranges[-1][1] = each
            else:
                ranges.append([each, each])
        texts.append(prefix + "[" + ",".join(a if a == b else f"{a}-{b}" for a, b in ranges) + "]")
    return ",".join(texts)


@given(
    st.lists(
        st.tuples(st.sampled_from(["n", "gpu-", "r2n"]), st.integers(0, 250), st.integers(1, 4)),
        min_size=1,
        max_size=30,
    )
)
def test_what_is_compressed_comes_back(names):
    wanted = [prefix + str(number).zfill(width) for prefix, number, width in names]

    assert wanted == expand_nodelist(compressed(names))
    assert wanted == expand_nodelist(",".join(wanted))


@pytest.mark.cluster
@pytest.mark.parametrize("text", ["n1", "n[1-3,07-09],gpu5", "n[098-101],m[1,3]", "b,a"])
def test_scontrol_writes_the_same_names(text, tmp_path):
    if shutil.which("scontrol") is None:
        pytest.skip("no scontrol")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    command = ["scontrol", "show", "hostnames", text]
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)

    assert done.stdout.split() == expand_nodelist(text), done.stderr


def test_counts_are_written_out(golden):
    assert [2, 2, 2, 1] == expand_counts("2(x3),1")
    assert [16] == expand_counts("16")
    with golden.raises(StudyError, match=r"x3.*2\(x3\),1"):
        expand_counts("2(x3")


def test_nodes_of_a_job_with_their_tasks():
    assert hosts_of_allocation(job("node[1-3]", "2(x2),1")) == hosts(2, 2, 1)
    assert hosts_of_allocation(job("node[1-2]")) == hosts(1, 1)


def test_outside_of_a_job_there_are_no_nodes(golden):
    with pytest.raises(StudyError) as caught:
        hosts_of_allocation({})
    golden(str(caught.value), "SLURM_JOB_NODELIST")

    with golden.raises(StudyError, match=r"2 nodes.*n\[1-2.*SLURM_TASKS_PER_NODE"):
        hosts_of_allocation(job("n[1-2]", "4"))


# ---------------------------------------------------------------------- where workers go


@given(workers=st.integers(1, 12), per_node=st.integers(1, 4), layout=st.sampled_from(["fill", "spread"]))
def test_hosts_get_what_the_placement_says(workers, per_node, layout):
    placement = Placement(workers=workers, workers_per_node=per_node, layout=layout)
    found = site_of(pair(hosts=hosts(*[4] * 12)), placement, environ={})

    assert list(placement.per_node) == [host.slots for host in found.hosts]
    assert [f"node{n + 1}" for n in range(placement.nodes)] == [host.name for host in found.hosts]
    assert PORTS[0] <= found.port <= PORTS[1]


def test_a_placement_by_names_takes_these_in_their_order():
    placement = Placement(workers=3, workers_per_node=2, layout="list", hosts=("node3", "node1"))

    found = site_of(pair(hosts=hosts(2, 2, 2)), placement, environ={})

    assert [("node3", 2), ("node1", 1)] == [(host.name, host.slots) for host in found.hosts]
    with pytest.raises(StudyError) as caught:
        site_of(pair(), placement, environ={})
    expected = "placement: host 'node3' is not in partition pair (did you mean 'node2'?); it has node1, node2"
    assert str(caught.value) == expected


def test_too_few_hosts_are_named_with_the_remedy(golden):
    with pytest.raises(StudyError) as caught:
        site_of(pair(), Placement(workers=6, workers_per_node=2), environ={})
    golden(str(caught.value), "6 workers", "2 per", "3 nodes", "node1", "node2", "--hosts")
    with pytest.raises(StudyError) as caught:
        site_of(slurm(), Placement(workers=6, workers_per_node=2), environ=job("n[1-2]", "2(x2)"))
    expected = "6 workers at 2 per node need 3 nodes, but job 77 has 2 (n1, n2); ask for more nodes"
    assert expected == str(caught.value)
    with golden.raises(StudyError, match="2 nodes"):
        site_of(Partition(name="local"), Placement(workers=2, workers_per_node=1), environ={})


def test_more_workers_than_slots_are_refused_unless_asked_for():
    placement = Placement(workers=4, workers_per_node=2)
    uneven = pair(hosts=hosts(2, 1))

    with pytest.raises(StudyError) as caught:
        site_of(uneven, placement, environ={})

    expected = "2 workers are to go to node2, which has 1 slot; lower workers_per_node, or use --oversubscribe"
    assert expected == str(caught.value)
    assert [2, 2] == [host.slots for host in site_of(uneven, placement, environ={}, oversubscribe=True).hosts]


def test_this_machine_alone_needs_nobody_to_start_anything_elsewhere():
    local = site_of(Partition(name="local", environment={"A": "1"}), Placement(), environ={})
    assert local.alone and local.hosts == () and local.environment == {"A": "1"}

    own = site_of(pair(hosts=(Host(name=HERE, slots=2),)), Placement(workers=2, workers_per_node=2), environ={})
    assert own.alone and own.here and not own.allocation

    other = site_of(pair(), Placement(), environ={})
    assert not other.alone and not other.here


def test_a_job_knows_its_own_node_by_the_name_that_slurm_gave_it():
    environ = job("n[1-2]", "2(x2)", SLURMD_NODENAME="n1")

    first = site_of(slurm(), Placement(workers=2, workers_per_node=2), environ=environ)
    assert first.alone and first.allocation
    both = site_of(slurm(), Placement(workers=2, workers_per_node=1), environ=environ)
    assert not both.alone and both.allocation
    second = site_of(slurm(), Placement(layout="list", hosts=("n2",)), environ=environ)
    assert not second.alone


def test_a_site_has_what_the_partition_says():
    partition = pair(interface="ib0", launcher="mpirun", environment={"NCCL_P2P_DISABLE": "1"}, cores_per_node=4)
    found = site_of(partition, Placement(workers=2, workers_per_node=1), environ={})

    assert ("ib0", "mpirun", {"NCCL_P2P_DISABLE": "1"}) == (found.interface, found.launcher, found.environment)
    assert found.cores_per_worker == partition.cores_per_worker


def test_a_free_port_can_be_used():
    with socket.socket() as listener:
        listener.bind(("", free_port()))


@pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "a b", "a,b", "a:1", "user@host", "$(x)", "a\nb"])
def test_what_is_no_host_is_refused(name, golden):
    with golden.raises(ConfigError):
        accept(Host, {"name": name, "slots": 1}, "host")


def test_values_of_a_site_are_checked(golden):
    with golden.raises(ConfigError):
        accept(Host, {"name": "a", "slots": 0}, "host")
    with golden.raises(ConfigError, match="eth0.*ib0"):
        Site(interface="eth0 $(x)")
    assert Site(interface="ib0,ib1").interface == "ib0,ib1"
