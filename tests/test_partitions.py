"""Partitions: what their files may say, what is refused and how, and where a name is looked for."""

import re
from pathlib import Path

import pytest
from make.wording import Golden
from pydantic import ValidationError

from horovod_study.config import partitions
from horovod_study.config.partitions import Host, Partition, find_partition, load_partition, this_machine
from horovod_study.config.run import available_cores
from horovod_study.errors import ConfigError

SHIPPED = Path(__file__).parents[1] / "jobs" / "partitions"

GOOD = """
description: four GPUs
scheduler: slurm
gpus_per_node: 4
cores_per_node: 24
memory_per_core_mb: 2583
gres: "gpu:{gpus}"
modules: [gcc/13, openmpi/4.1]
environment:
  NCCL_DEBUG: WARN
  NCCL_P2P_DISABLE: {value: 1, because: direct copies hang}
"""

SSH = "scheduler: ssh\ncores_per_node: 4\nhosts: [node1, node2:2, {name: node3}]\n"


def write(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---------------------------------------------------------------------------------------------------- files


def test_a_partition_is_read(tmp_path: Path) -> None:
    assert load_partition(write(tmp_path, GOOD)) == Partition(
        name="mine",
        description="four GPUs",
        scheduler="slurm",
        nodes=None,
        gpus_per_node=4,
        cores_per_node=24,
        cores_per_worker=6,
        memory_per_core_mb=2583,
        gres="gpu:{gpus}",
        modules=("gcc/13", "openmpi/4.1"),
        environment={"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"},
        because={"NCCL_P2P_DISABLE": "direct copies hang"},
    )


@pytest.mark.parametrize(
    ("text", "slots", "capacity", "per_worker", "node"),
    [
        ("scheduler: slurm\ncores_per_node: 48\ngpus_per_node: 8", 8, None, 6, "8 GPUs and 48 cores"),
        ("scheduler: slurm\ncores_per_node: 12\ngpus_per_node: 3\nnodes: 2", 3, 6, 4, "3 GPUs and 12 cores"),
        ("scheduler: slurm\ncores_per_node: 128\nnodes: 4", 128, 512, 1, "128 cores"),
        ("scheduler: slurm\ncores_per_node: 128\ncores_per_worker: 16", 8, None, 16, "128 cores"),
        ("scheduler: slurm\ncores_per_node: 4\ngpus_per_node: 1\ncores_per_worker: 2", 1, None, 2, "1 GPU and 4 cores"),
        (SSH, 2, 6, 1, "4 cores"),
    ],
)
def test_slots_are_gpus_or_cores(
    tmp_path: Path, text: str, slots: int, capacity: int | None, per_worker: int, node: str
) -> None:
    found = load_partition(write(tmp_path, text))

    assert (found.slots_per_node, found.capacity, found.cores_per_worker) == (slots, capacity, per_worker)
    assert found.node() == node


def test_a_heading_with_nothing_below_it_says_nothing(tmp_path: Path) -> None:
    found = load_partition(
        write(tmp_path, "scheduler: slurm\ncores_per_node: 4\nmodules:\nenvironment:\nhosts:\nnodes:\n")
    )

    assert (found.modules, dict(found.environment), found.hosts, found.nodes) == ((), {}, (), None)


def test_hosts_are_named_with_their_slots(tmp_path: Path) -> None:
    found = load_partition(write(tmp_path, SSH))

    assert found.hosts == (Host(name="node1", slots=4), Host(name="node2", slots=2), Host(name="node3", slots=4))
    assert found.nodes == 3
    assert found.slots_per_node == 2, "what the smallest takes"


def test_what_a_local_file_leaves_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "gpus_here", lambda: 0)
    found = load_partition(write(tmp_path, "scheduler: local\n"))
    monkeypatch.setattr(partitions, "gpus_here", lambda: 2)
    monkeypatch.setattr(partitions, "available_cores", lambda: 12)
    with_gpus = load_partition(write(tmp_path, "description: workstation\n"))

    assert (found.cores_per_node, found.gpus_per_node, found.cores_per_worker) == (available_cores(), 0, 1)
    assert (with_gpus.cores_per_node, with_gpus.gpus_per_node, with_gpus.cores_per_worker) == (12, 2, 6)
    assert with_gpus.slots_per_node == this_machine().slots_per_node == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpus_per_node", "gpu_per_node", r"mine\.yaml.*gpu_per_node.*gpus_per_node"),
        (
            "scheduler: slurm",
            "scheduler: slum",
            r"mine\.yaml.*slum.*slurm",
        ),
        (
            "description: four GPUs",
            "launcher: mpiexec",
            "mpiexec",
        ),
        ("cores_per_node: 24\n", "", "cores_per_node"),
        ("cores_per_node: 24", "cores_per_node: many", "cores_per_node.*many"),
        ("cores_per_node: 24", "cores_per_node: 0", "cores_per_node"),
        (
            "cores_per_node: 24",
            "cores_per_node: 24\ncores_per_worker: 7",
            "4 workers.*7 cores.*28",
        ),
        ("cores_per_node: 24", "cores_per_node: 24\ncores_per_worker: 25", "cores_per_worker.*25.*24"),
        ("cores_per_node: 24", "cores_per_node: 24\ntime_limit_s: 5", r"time_limit_s.*5.*60"),
        ("cores_per_node: 24", "cores_per_node: 24\nexclusive: 1", ""),
        ("gpus_per_node: 4", "gpus_per_node: 0", "gpus_per_node"),
        ("gpu:{gpus}", "gpu:{count}", "GPUs"),
        ("[gcc/13, openmpi/4.1]", "gcc/13", "gcc/13"),
        ("[gcc/13, openmpi/4.1]", '["gcc\\nrm"]', ""),
        ("description: four GPUs", 'account: "a\\n#SBATCH -x"', ""),
        ("description: four GPUs", 'qos: "a\\0"', ""),
        ("description: four GPUs", "name: a/b", "a/b"),
        ("description: four GPUs", "hosts: [node1]", "1 hosts"),
        ("NCCL_DEBUG: WARN", "NCCL DEBUG: WARN", "NCCL DEBUG"),
        ("NCCL_DEBUG: WARN", 'NCCL_DEBUG: "a\\nb"', r"NCCL_DEBUG.*a\\nb"),
        ("NCCL_DEBUG: WARN", "NCCL_DEBUG: true", "NCCL_DEBUG"),
        ("NCCL_DEBUG: WARN", "NCCL_DEBUG: [1]", "NCCL_DEBUG"),
        ("{value: 1,", "{values: 1,", "NCCL_P2P_DISABLE.*values"),
        ("{value: 1, because: direct copies hang}", "{because: so}", "NCCL_P2P_DISABLE.*value"),
        ("scheduler: slurm", "scheduler: local\nnodes: 2", ""),
    ],
)
def test_a_wrong_partition_file(tmp_path: Path, old: str, new: str, message: str, golden: Golden) -> None:
    assert old in GOOD
    with golden.raises(ConfigError, match=message or None) as caught:
        load_partition(write(tmp_path, GOOD.replace(old, new)))

    assert str(caught.value).startswith(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler: ssh\ncores_per_node: 4\n", ""),
        (SSH.replace("node2:2", "node1:2"), "node1.*node1:N"),
        (SSH.replace("node2:2", "node2:0"), "node2"),
        (SSH.replace("node2:2", '"-oProxyCommand=x"'), "-oProxyCommand=x"),
        (SSH.replace("node2:2", '"a b"'), ""),
        (SSH + "nodes: 2\n", "3 hosts"),
        (SSH.replace("[node1, node2:2, {name: node3}]", "node1"), "node1"),
    ],
)
def test_wrong_hosts(tmp_path: Path, text: str, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None):
        load_partition(write(tmp_path, text))


def test_a_partition_made_in_a_program_is_checked_too() -> None:
    with pytest.raises(ValidationError, match="one line of text"):
        Partition(name="x", account="a\nb")
    with pytest.raises(ValidationError, match=r"cores_per_worker.*1 cores"):
        Partition(name="x", cores_per_worker=2)


# ---------------------------------------------------------------------------------------------------- by name


def test_where_a_name_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(what: str) -> str:
        return f"scheduler: slurm\ncores_per_node: 4\ndescription: {what}\n"

    study = write(tmp_path, "", "project/studies/study.yaml")
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    looked = []
    assert find_partition("alpha", beside=study).gpus_per_node == 8, "that of the checkout"
    for place in ("project/jobs/partitions", "elsewhere/jobs/partitions", "project/studies/partitions"):
        write(tmp_path, text(place), f"{place}/alpha.yaml")
        looked.append(find_partition("alpha", beside=study).description)

    assert looked == ["project/jobs/partitions", "elsewhere/jobs/partitions", "project/studies/partitions"]
    assert find_partition("alpha").description == "elsewhere/jobs/partitions", "no study file, none beside it"


def test_a_path_is_taken_from_the_study_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    study = write(tmp_path, "", "studies/study.yaml")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "scheduler: slurm\ncores_per_node: 4\n", "p/box.yaml")
    assert find_partition("p/box.yaml", beside=study).cores_per_node == 4
    write(tmp_path, "scheduler: slurm\ncores_per_node: 8\n", "studies/p/box.yaml")
    assert find_partition("p/box.yaml", beside=study).cores_per_node == 8
    assert find_partition(str(tmp_path / "p" / "box.yaml")).name == "box"
    with golden.raises(ConfigError, match=r"nowhere\.yaml"):
        find_partition("nowhere.yaml", beside=study)


@pytest.mark.parametrize("name", ["alfa", "../alpha", "", "a\0b"])
def test_an_unknown_name_is_answered_with_the_nearest(name: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match="archer2.*jobs/partitions") as error:
        find_partition(name)

    assert ("(did you mean 'alpha'?)" in str(error.value)) == (name in ("alfa", "../alpha"))


def test_local_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "FOLDER", Path("nowhere"))

    assert find_partition("local") == this_machine()


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        *((None, 3), ("", 0), ("0,1", 2), ("0,1,2,3", 3), (" 2 , 0", 2)),
        *(("-1", 0), ("NoDevFiles", 0), ("0,-1,1", 1), ("0,7,1", 1), ("0,,1", 1), ("1,1", 0)),  # the rest is not seen
        *(("GPU-8932f937-d72c", 1), ("GPU-89,GPU-5f,GPU-c1,GPU-d2", 3), ("MIG-5f,0", 2)),
    ],
)
def test_gpus_are_counted_by_their_devices(visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Path(f"/dev/{name}") for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia0x")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: devices)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert partitions.gpus_here() == count


# ---------------------------------------------------------------------------------------------------- shipped ones


@pytest.mark.parametrize(
    ("name", "gpus", "cores", "per_worker", "memory"),
    [
        ("alpha", 8, 48, 6, 10312),
        ("gpu2", 4, 24, 6, 2583),
        ("hpdlf", 3, 12, 4, 7916),
        ("archer2", 0, 128, 1, None),
        ("cirrus", 0, 288, 1, None),
        ("perlmutter", 4, 64, 16, None),
    ],
)
def test_shipped_partitions(name: str, gpus: int, cores: int, per_worker: int, memory: int | None) -> None:
    found = find_partition(name)

    assert (found.gpus_per_node, found.cores_per_node, found.cores_per_worker) == (gpus, cores, per_worker)
    assert (found.memory_per_core_mb, found.scheduler, found.account) == (memory, "slurm", None)
    assert found.exclusive and (found.gres is not None) == bool(gpus)


def test_every_shipped_file_is_valid_and_says_why_a_variable_is_set() -> None:
    found = {path.stem: load_partition(path) for path in SHIPPED.glob("*.yaml")}

    assert {"alpha", "gpu2", "hpdlf", "archer2", "cirrus", "perlmutter", "generic", "local"} <= set(found)
    assert {name: dict(each.environment) for name, each in found.items() if each.environment} == {
        "gpu2": {"NCCL_P2P_DISABLE": "1"}
    }
    for each in found.values():
        assert set(each.environment) == set(each.because)


def test_the_template_names_every_key() -> None:
    text = (SHIPPED / "generic.yaml").read_text()

    for key in set(Partition.model_fields) - {"because"}:
        assert f"{key}:" in text or key == "name", key


def test_a_template_with_all_its_lines_uncommented_is_valid(tmp_path: Path) -> None:
    text = re.sub(r"^# (?!hosts)(?=[a-z_]+: )", "", (SHIPPED / "generic.yaml").read_text(), flags=re.MULTILINE)
    text = text.replace("# environment:", "environment:").replace("#   NCCL", "  NCCL")
    found = load_partition(write(tmp_path, text))

    assert set(found.environment) == {"NCCL_DEBUG", "NCCL_P2P_DISABLE"}
    assert found.modules == ("gcc/13", "openmpi/4.1.6", "cuda/12.4")
    assert (found.qos, found.constraint, found.srun_mpi, found.time_limit_s) == ("normal", "a100", "pmix", 86400.0)
