"""The schemas from which editors complete: they are those of the models, shipped files name them, and both agree."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from horovod_study.config.schemas import schemas

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "schema"
SHIPPED = sorted([*(ROOT / "experiments").glob("*.yaml"), *(ROOT / "jobs" / "partitions").glob("*.yaml")])


class Loader(yaml.SafeLoader):
    """YAML 1.2, as editors read it: 1e-4 is a number."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^-?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-0123456789")
)


def faults(name: str, content: object) -> list[str]:
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    return [each.message for each in jsonschema.Draft202012Validator(schema).iter_errors(content)]


def test_they_are_those_of_the_models() -> None:
    written = {path.name: path.read_text() for path in FOLDER.iterdir()}

    assert written == schemas(), "write them again: python -m horovod_study.config.schemas"
    for text in written.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_names_its_schema_and_is_what_it_says(path: Path) -> None:
    named = re.findall(r"^# yaml-language-server: \$schema=(.*)$", path.read_text().partition("\n\n")[0], re.MULTILINE)
    kind = "partition" if path.parent.name == "partitions" else "search" if path.stem == "search" else "study"

    assert [(path.parent / each).resolve() for each in named] == [FOLDER / f"{kind}.json"]
    assert faults(kind, yaml.load(path.read_text(), Loader)) == []


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("study", {"study": "a", "sweep": {"workers": "cores", "lrr": 1}}, 1),
        ("study", {"study": "a", "sweep": {"workers": [0]}}, 1),
        ("study", {"study": "a", "sweep": {"zip": {"batch": [1], "lr": [0.1]}}, "run": {"batc": 1}}, 1),
        ("study", {"study": "a", "sweep": {"anything": 1}, "command": "train {anything}"}, 0),
        ("search", {"search": "a", "run": {}, "space": {"lr": {"low": 1}}}, 1),
        ("search", {"search": "a", "run": {}, "space": {"schedule": ["constant", "cosin"]}}, 1),
        ("partition", {"scheduler": "slum"}, 1),
        ("partition", {"gpus_per_node": -1}, 1),
        ("partition", {"hosts": ["node1", {"name": "node2", "slots": 2}], "environment": {"A": {"value": 1}}}, 0),
    ],
)
def test_what_a_door_refuses_an_editor_marks(name: str, content: dict, count: int) -> None:
    assert len(faults(name, content)) == count
