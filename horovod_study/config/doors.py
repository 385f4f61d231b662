"""The door for values from outside: they are checked by a pydantic form, and what is wrong is said in one line.

    class Host(Form):
        name: Text
        slots: Annotated[Whole, at_least(1)] = 1

    accept(Host, {"name": "n1", "slot": 4}, "jobs/gpu.yaml")
    ConfigError: jobs/gpu.yaml: unknown key 'slot' (did you mean 'slots'?); allowed: name, slots

A number may be written as a text ("3", "1e-3"), because command lines have only these; a boolean is never a number and
never a text. A fault that is none of a type or a range is raised in a validator: `ValueError("...")` about the value of
one field, `wrong("...")` about several. Inside the door values are what their annotations say, and nobody asks again.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Annotated, Any, Self

import pydantic
from annotated_types import Ge, Gt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, TypeAdapter, model_validator
from pydantic import ValidationError as ValidationError
from pydantic_core import PydanticCustomError, to_json

from horovod_study.errors import ConfigError, RecordError, StudyError, nearest, short


def wrong(text: str) -> PydanticCustomError:
    """Return the error of a validator that is told as it is: it names what does not fit together."""
    return PydanticCustomError("told", "{text}", {"text": text})


class Form(BaseModel):
    """A mapping with these keys and no other; an unknown one is refused with the nearest that is known."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        names = [field.alias or name for name, field in cls.model_fields.items()]
        for key in content:
            if key not in names:
                raise wrong(f"unknown key {short(key)}{nearest(str(key), names)}; allowed: {', '.join(names)}")
        return content


class Options(Form):
    """Options of a verb: the field `steps_per_block` is told as --steps-per-block."""

    model_config = ConfigDict(alias_generator=lambda name: f"--{name.replace('_', '-')}")

    @classmethod
    def of(cls, verb: str, given: Mapping[str, Any]) -> Self:
        """Return those of the options `given`, by the names of fields, that are in this form; ConfigError otherwise."""
        named = {str(field.alias): given[name] for name, field in cls.model_fields.items() if name in given}
        found: Self = accept(cls, named, verb)
        return found


def _refused(what: str) -> PydanticCustomError:
    return PydanticCustomError("kind", "it must be {what}", {"what": what})


def _whole(value: Any) -> Any:
    try:
        number = float(value)
        if isinstance(value, bool) or number != int(number) or abs(number) >= 2**64:
            raise ValueError
        return value if isinstance(value, int) else int(value) if str(value).isdecimal() else int(number)
    except (TypeError, ValueError, OverflowError):
        raise _refused("a whole number of at most 64 bits") from None


def _number(value: Any) -> Any:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise _refused("a number")
    return number


def _text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float | date):  # YAML reads 2026-07-31 as a date
        raise _refused("a text")
    try:
        str(value).encode()
    except UnicodeEncodeError:  # lone surrogates, with which nothing can be named or written
        raise _refused("a text in Unicode") from None
    return str(value)


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Text = Annotated[str, BeforeValidator(_text), pydantic.WithJsonSchema({"type": ["string", "number"]})]
Flag = pydantic.StrictBool
KINDS: Mapping[type, Any] = {int: Whole, float: Number, str: Text, bool: Flag}


at_least, above = Ge, Gt  # what follows a number in Annotated that may be so much or more, and one that must exceed it


@dataclass(frozen=True)
class _Check(AfterValidator):
    """A check of which an editor is told: `schema` is what JSON Schema calls it."""

    schema: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __get_pydantic_json_schema__(self, inner: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {**handler(inner), **self.schema}


def one_of(allowed: Iterable[str]) -> Any:
    """Return what follows a text in Annotated that is one of `allowed`."""
    names = tuple(allowed)

    def check(value: str) -> str:
        if value not in names:
            raise PydanticCustomError("choice", "{text}", {"text": _choices(value, names)})
        return value

    return _Check(check, {"enum": names})


def matching(pattern: str, text: str) -> Any:
    """Return what follows a text in Annotated that has a pattern; `text` says what that is."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(text)
        return value

    return _Check(check, {"pattern": f"^({pattern})$"})


BELOW = matching(r"(?!/)(?!([^\x00]*/)?\.\.(/|\Z))[^\x00]*", "it must be a path below this folder: no .., no NUL")
"""What follows a text in Annotated that a document names a file below its own folder with."""
BESIDE = matching(r"(?!/)[^\x00]*", "it must be a path relative to this folder, without NUL")
"""The same of a place elsewhere, which moves together with the document: `..` is allowed, an absolute path is not."""


def _choices(value: Any, allowed: Sequence[str]) -> str:
    return f"{short(value)}{nearest(str(value), allowed)}; allowed: {', '.join(allowed)}"


def keyed(title: str, forms: Mapping[str, Any], *, needed: Iterable[str] = ()) -> Any:
    """Return the form of a mapping with these keys, whatever they are called; gives a dict of those there."""
    keys = {name: f"key{at}" for at, name in enumerate(forms)}
    missing: dict[str, Any] = {name: {} if name in needed else {"default_factory": lambda: None} for name in forms}
    fields: Any = {keys[name]: (form, pydantic.Field(alias=name, **missing[name])) for name, form in forms.items()}

    def plain(content: Any, check: Callable[[Any], Any]) -> dict[str, Any]:
        found = check(content)
        return {name: getattr(found, keys[name]) for name in content}

    return Annotated[pydantic.create_model(title, __base__=Form, **fields), pydantic.WrapValidator(plain)]


def several(value: Any) -> Any:
    """Return one value or a list of them as a list; before a list in Annotated as BeforeValidator(several)."""
    return value if isinstance(value, list | tuple) else [value]


def checked(kind: type, **limits: Any) -> Any:
    """Return the form of one value: its kind (bool, int, float, str), `low`, `above`, `choices`, `parse`."""
    of: dict[str, Any] = {"low": at_least, "above": above, "choices": one_of, "parse": _parsed}
    form = KINDS[kind]
    for name, mark in of.items():
        if limits.get(name) is not None:
            form = Annotated[form, mark(limits[name])]
    return form


def _parsed(parse: Callable[[Any], Any]) -> AfterValidator:
    def check(value: Any) -> Any:
        try:
            parse(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(check)


def accept(
    form: Any,
    content: Any,
    source: str,
    *,
    name: str = "",
    error: type[StudyError] = ConfigError,
    again: str = "",
    context: Any = None,
) -> Any:
    """Return `content`, which is called `name`, as what the pydantic type `form` makes of it.

    Raises `error`: `source`, the key, what was given, what is allowed, then `again`, what to do next. `context`: what
    validators may ask for (`info.context`).
    """
    try:
        return adapter(form).validate_python(content, context=context)
    except ValidationError as problem:
        raise error(f"{source}: {fault(problem, content, name)}{again and '; '}{again}") from None


def asked(form: type[Options], values: Mapping[str, Any], source: str) -> Any:
    """Return values by the names of their fields as what `form` makes of them; ConfigError names the option."""
    said = {f"--{name.replace('_', '-')}": value for name, value in values.items() if value is not None}
    return accept(form, said, source)


def conform(content: Any, form: Any, source: str, error: type[StudyError] = RecordError, again: str = "") -> Any:
    """Return a JSON document if it has the form that the pydantic type, or dataclass, `form` declares."""
    if form is Any:
        return content
    try:
        if hasattr(form, "__dataclass_fields__"):  # of which JSON has the fields, but no tuples
            return adapter(form).validate_json(to_json(content), strict=True)
        return adapter(form).validate_python(content, strict=True)
    except ValidationError as problem:
        raise error(f"{source}: {fault(problem, content)}{again and '; '}{again}") from None


@cache
def adapter(form: Any) -> TypeAdapter[Any]:
    """Return the validator of a form, made once."""
    return TypeAdapter(form)


_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("string_type", "string_unicode"), "a text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "`key: value` lines"),
}
_RANGES = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def fault(problem: ValidationError, content: Any, name: str = "") -> str:
    """Return in words where (below `name`) and what the first fault is, and how many there are beside it."""
    faults: list[Any] = problem.errors(include_url=False)
    first, ctx = faults[0], faults[0].get("ctx", {})
    of_key = first["loc"][-1:] == ("[key]",)  # which is told as what was given
    where = ".".join(filter(None, (name, _place(first["loc"][: -2 if of_key else None], content))))
    kind, given, name = first["type"], short(first["input"]), where or "the document"
    plain = {
        "told": f"{where}: {ctx.get('text')}" if where else ctx.get("text"),
        "choice": f"{name} is {ctx.get('text')}",
    }
    plain |= dict.fromkeys(("missing", "missing_argument"), f"{where} is missing")
    plain |= dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), f"{where} is not known")
    if kind in plain:
        text = f"{plain[kind]}"
    elif kind in ("literal_error", "union_tag_invalid"):
        allowed = re.findall(r"'([^']*)'", ctx.get("expected") or ctx.get("expected_tags", ""))
        text = f"{name} is {_choices(ctx.get('tag', first['input']), allowed)}"
    elif kind == "too_short":
        text = f"{name} is {given}; it must have {ctx['min_length']} or more"
    elif kind in _RANGES:
        key, words = _RANGES[kind]
        limit = f"{ctx[key]:,.0f}" if 1000 <= ctx[key] < 1e15 else f"{ctx[key]:g}"
        text = f"{name} is {str(first['input'])[:60]}; it must be {words} {limit}"
    elif kind in _KINDS:
        text = f"{name} is {given}; it must be {_KINDS[kind]}"
    else:
        said = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("a valid ")
        text = f"{name} is {given}; {said[:1].lower()}{said[1:]}"
    return text + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")


def _place(loc: tuple[int | str, ...], content: Any) -> str:
    """Return where in a document a fault is, such as totals.steady.step; pydantic's names of alternatives left out."""
    names: list[str] = []
    for at, part in enumerate(loc):
        if names and names[0].startswith("--"):  # one of the values of an option
            break
        if isinstance(content, Mapping) and part in content:
            content = content[part]
        elif isinstance(content, list | tuple) and isinstance(part, int):
            content = content[part] if part < len(content) else None
        elif at < len(loc) - 1 or isinstance(content, list | tuple | str | int | float):
            continue
        names.append(str(part))
    return ".".join(names)
