"""The pages about clusters say what the program does: keys, states, and the plan they show."""

import re

import pytest
from doc_commands import ROOT, blocks
from doc_commands import text_of as text

from horovod_study.config.partitions import Partition, load_partition
from horovod_study.studies.ledger import STATES, read_ledger
from horovod_study.studies.plan import plan_study
from horovod_study.studies.study_file import load_study, sweep_of


def test_every_key_of_a_partition_is_explained_and_no_other():
    explained = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text("jobs/README.md").split("## Every key")[1], re.MULTILINE)

    assert sorted(re.findall(r"\w+", " ".join(explained))) == sorted({*Partition.model_fields} - {"because"})


def test_every_state_of_a_cell_is_explained_and_no_other():
    rows = text("docs/studies.md").split("| state |")[1].split("\n\n")[0].splitlines()[2:]

    assert sorted(row.split("|")[1].strip() for row in rows) == sorted(STATES)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "jobs" / "partitions").glob("*.yaml")))
def test_every_shipped_partition_is_listed(name):
    assert f"| `{name}`" in text("jobs/README.md") or f", `{name}`" in text("jobs/README.md")


def test_the_plan_of_the_first_study_is_that_of_its_files(tmp_path):
    partition = next(block for block in blocks(text("docs/first_study.md"), "yaml") if block.startswith("description:"))
    study = next(block for block in blocks(text("docs/first_study.md"), "yaml") if block.startswith("study: scaling"))
    shown = next(block for block in blocks(text("docs/first_study.md"), "") if block.startswith("study scaling: 0 of"))
    (tmp_path / "partitions").mkdir()
    (tmp_path / "partitions" / "mycluster.yaml").write_text(partition)
    (tmp_path / "scaling.yaml").write_text(study)

    loaded = load_study(tmp_path / "scaling.yaml")
    plan = plan_study(read_ledger(sweep_of(loaded, tmp_path / "runs")), retry=True)

    assert plan.lines() == shown.splitlines()


def test_the_partition_of_hosts_over_ssh_can_be_read(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        next(block for block in blocks(text("docs/first_study.md"), "yaml") if block.startswith("scheduler: ssh"))
    )

    assert load_partition(tmp_path / "mine.yaml").capacity == 4
