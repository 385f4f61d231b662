"""What people write, as JSON schemas: from docs/schema editors complete and mark studies, searches and partitions.

    python -m horovod_study.config.schemas      writes them again

A file names its own in a comment at its head: `# yaml-language-server: $schema=../docs/schema/study.json`.
"""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from horovod_study.config.doors import adapter
from horovod_study.config.partitions import Partition
from horovod_study.config.study_file import SearchFile, StudyFile, space_form, sweep_form
from horovod_study.config.workload import packaged
from horovod_study.files import write_file


def schemas() -> dict[str, str]:
    """Return the schemas, as JSON, by the names of their files.

    Under `run`, `sweep` and `space` there are options of the package's own workload, unless a study names another one.
    """
    own, options = packaged().form, packaged().options
    other = {"anyOf": [{"required": [name]} for name in ("script", "command", "workload")]}
    found = {
        "study.json": _schema(StudyFile, other, run=own, sweep=sweep_form(packaged())),
        "search.json": _schema(SearchFile, False, run=own, space=space_form(options)),
        "partition.json": {**Partition.model_json_schema(), "required": []},  # its name is that of the file
    }
    return {
        name: re.sub('"(ge|gt|lt)":', _limit, json.dumps(schema, indent=1)) + "\n" for name, schema in found.items()
    }


def _limit(found: re.Match[str]) -> str:
    """Return how JSON Schema calls a limit; behind a validator pydantic has names of its own."""
    return {"ge": '"minimum":', "gt": '"exclusiveMinimum":', "lt": '"exclusiveMaximum":'}[found[1]]


def _schema(form: Any, unless: Any, **parts: Any) -> dict[str, Any]:
    """Return the schema of a form whose properties `parts` have forms of their own, `unless` a file fits that."""
    asked: Any = [(name, "validation", adapter(each)) for name, each in {"": form, **parts}.items()]
    found, definitions = TypeAdapter.json_schemas(asked)
    own = {"properties": {name: found[name, "validation"] for name in parts}}
    return {**definitions, **found["", "validation"], "if": unless, "else": own}


if __name__ == "__main__":
    for name, text in schemas().items():
        write_file(Path("docs/schema") / name, text)
