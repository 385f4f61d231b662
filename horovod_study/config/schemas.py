"""What people write, as JSON schemas: from docs/schema editors complete and mark studies, searches and partitions.

    python -m horovod_study.config.schemas      writes them again

A file names its own in a comment at its head: `# yaml-language-server: $schema=../docs/schema/study.json`.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from horovod_study.config.doors import adapter
from horovod_study.config.partitions import Partition
from horovod_study.config.study_file import SearchFile, StudyFile, space_form, sweep_form
from horovod_study.config.workload import packaged
from horovod_study.files import write_file

_LIMITS = {'"ge":': '"minimum":', '"gt":': '"exclusiveMinimum":', '"lt":': '"exclusiveMaximum":'}
"""Behind a validator, pydantic calls limits by names that JSON Schema does not have."""


def schemas() -> dict[str, str]:
    """Return the schemas by the names of their files, as JSON.

    Under `run`, `sweep` and `space` there are options of the package's own workload, unless a study names another one.
    """
    workload = packaged()
    other = {"anyOf": [{"required": [name]} for name in ("script", "command", "workload")]}
    study, options = _with_parts(StudyFile, run=workload.form, sweep=sweep_form(workload))
    search, space = _with_parts(SearchFile, run=workload.form, space=space_form(workload.options))
    partition = {**Partition.model_json_schema(), "required": []}  # its name is that of the file
    found = {"study": {**study, "if": other, "else": options}, "search": {**search, "then": space, "if": True}}
    texts = {name: json.dumps(schema, indent=1) + "\n" for name, schema in {**found, "partition": partition}.items()}
    for before, after in _LIMITS.items():
        texts = {name: text.replace(before, after) for name, text in texts.items()}
    return {f"{name}.json": text for name, text in texts.items()}


def _with_parts(form: Any, **parts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a form, and what its properties `parts` are beside that, of one set of definitions."""
    asked = [(name, "validation", adapter(each)) for name, each in {"": form, **parts}.items()]
    found, definitions = TypeAdapter.json_schemas(asked)  # type: ignore[arg-type]
    return {**definitions, **found["", "validation"]}, {
        "properties": {name: found[name, "validation"] for name in parts}
    }


if __name__ == "__main__":
    for name, text in schemas().items():
        write_file(Path("docs/schema") / name, text)
