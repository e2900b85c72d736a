"""Schemas as pydantic, MCP servers and others write them: a legal call is read back, in dialects without types."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, JsonValue, create_model

from xp.checks.env_check.policy import Draw, arguments_of, faults_of
from xp.envs.base import ToolSpec
from xp.episode.dialects import SYNTAX
from xp.episode.json_schema import _merged, properties, required
from xp.episode.tool_calls import MalformedCall, ToolCall
from xp.spec.dialect import Dialect

TAGGED = (Dialect.QWEN_XML, Dialect.GLM)


class Unit(StrEnum):
    CELSIUS = "celsius"
    ONE = "1"


class Place(BaseModel):
    city: str
    tags: list[str] = []


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


def read(tool: ToolSpec, dialect: Dialect, **arguments: str) -> Any:
    """The call whose arguments have these texts."""
    return SYNTAX[dialect].read(SYNTAX[dialect].write(tool.name, arguments), lambda: (tool,))


def tool_of(schema: Any, *, is_required: bool = False) -> ToolSpec:
    parameters = {"type": "object", "properties": {"it": schema}}
    return ToolSpec(
        "look", "Look.", parameters | {"required": ["it"]} if is_required else parameters
    )


WRITTEN_BY_PYDANTIC: list[tuple[Any, list[Any]]] = [
    (Unit | None, ["celsius", "1", None]),
    (Place | None, [{"city": "Rome", "tags": ["a"]}, None]),
    (Literal[1, 2, "auto", None], [1, "auto", None]),
    (list[Place], [[{"city": "Rome", "tags": []}, {"city": "3", "tags": ["x"]}]]),
    (Annotated[Annotated[str, Field(max_length=5)] | None, Field(description="x")], ["12", None]),
    (datetime | None, ["2026-01-02T03:04:05Z", None]),
    (tuple[int, str], [[1, "1"]]),
    (str | list[str], ["a b", ["a", "b"]]),
    (Node, [{"name": "a", "children": [{"name": "b", "children": []}]}]),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        [{"kind": "cat", "lives": 9}, {"kind": "dog"}],
    ),
    (JsonValue | None, [{"a": [1, None]}, 3, True, None, "text"]),
    (Any, [{"a": 1}, 3, "text"]),
]


@pytest.mark.parametrize("dialect", TAGGED)
@pytest.mark.parametrize(
    ("kind", "values"),
    WRITTEN_BY_PYDANTIC,
    ids=lambda one: str(one)[:60],
)
@pytest.mark.parametrize("default", [..., None])
def test_a_call_is_possible_with_every_value_of_a_type(
    kind: Any, values: list[Any], default: Any, dialect: Dialect
) -> None:
    model = create_model("Look", it=(kind, default))
    tool = ToolSpec("look", "Look.", model.model_json_schema())
    for value in values:
        text = SYNTAX[dialect].write("look", {"it": value})
        assert SYNTAX[dialect].read(text, lambda: (tool,)) == (ToolCall("look", {"it": value}),)
        model.model_validate({"it": value})


@pytest.mark.parametrize("dialect", TAGGED)
@pytest.mark.parametrize(
    ("schema", "is_required", "arguments"),
    [
        ({"type": "integer"}, False, {}),
        ({"type": "string"}, False, {}),
        ({"type": "string", "default": ","}, False, {"it": ""}),  # the tool would take another text
        ({"type": "string"}, True, {"it": ""}),
        ({"type": "integer"}, True, None),
    ],
)
def test_an_empty_tag_of_an_optional_argument_leaves_it_out(
    schema: dict[str, Any], is_required: bool, arguments: dict[str, Any] | None, dialect: Dialect
) -> None:
    (found,) = read(tool_of(schema, is_required=is_required), dialect, it="")
    if arguments is None:
        assert isinstance(found, MalformedCall)
    else:
        assert found == ToolCall("look", arguments)


def test_a_tools_arguments_may_be_behind_a_reference() -> None:
    recursive = Node.model_json_schema()
    assert "properties" not in recursive
    assert set(properties(recursive)) == {"name", "children"}
    assert required(recursive) == ["name"]
    either = {"anyOf": [Cat.model_json_schema(), Dog.model_json_schema()]}
    assert set(properties(either)) == {"kind", "lives"}
    assert required(either) == ["kind"]
    for root in (recursive, either):
        tool = ToolSpec("look", "Look.", root)
        assert list(faults_of(tool)) == []
        for seed in range(20):
            jsonschema.validate(arguments_of(tool, Draw(seed, ())), root)
    assert read(
        ToolSpec("look", "Look.", either),
        Dialect.GLM,
        kind="cat",
        lives="9",
    ) == (ToolCall("look", {"kind": "cat", "lives": 9}),)


def test_a_combined_schema_has_the_arguments_of_all_its_parts() -> None:
    kinds = [
        {
            "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["lives"],
        },
        {"properties": {"kind": {"const": "dog"}}},
    ]
    root = {
        "type": "object",
        "properties": {"kind": {"type": "string"}},
        "required": ["kind"],
        "allOf": [{"properties": {"name": {"type": "string"}}, "required": ["name"]}],
        "oneOf": kinds,
    }
    assert set(properties(root)) == {"kind", "lives", "name"}
    assert required(root) == ["kind", "name"]
    tool = ToolSpec("look", "Look.", root)
    for seed in range(20):
        jsonschema.validate(arguments_of(tool, Draw(seed, ())), root)
    assert read(tool, Dialect.GLM, kind="cat", lives="9", name="3") == (
        ToolCall("look", {"kind": "cat", "lives": 9, "name": "3"}),
    )


@pytest.mark.parametrize(
    ("first", "other", "both"),
    [
        (
            '{"type": "integer"}',
            '{"type": "number", "default": 3}',
            '{"type": ["integer"], "default": 3}',
        ),
        ('{"type": "string"}', '{"type": "number"}', "null"),
        ('{"required": ["a"]}', '{"required": ["b"]}', '{"required": ["a", "b"]}'),
        ('{"enum": [1, 2]}', '{"enum": [2, 3]}', '{"enum": [2]}'),
        ('{"enum": [1]}', '{"enum": [2]}', "null"),
        (
            '{"properties": {"a": {"type": "string"}, "b": {}}}',
            '{"properties": {"a": {"enum": ["x"]}}}',
            '{"properties": {"a": {"allOf": [{"type": "string"}, {"enum": ["x"]}]}, "b": {}}}',
        ),
    ],
)
def test_two_branches_allow_what_both_allow(first: str, other: str, both: str) -> None:
    assert _merged(json.loads(first), json.loads(other)) == json.loads(both)


@pytest.mark.parametrize("turn", ["$ref", "anyOf"])
def test_a_schema_that_is_only_itself_allows_anything(turn: str) -> None:
    circle = {"$ref": "#/$defs/a"}
    parts = {"a": circle if turn == "$ref" else {"anyOf": [circle, {"type": "integer"}]}}
    tool = ToolSpec("look", "", {"$defs": parts, "properties": {"it": circle}})
    assert read(tool, Dialect.GLM, it="3") == (ToolCall("look", {"it": 3}),)
    assert read(tool, Dialect.GLM, it="x") == (ToolCall("look", {"it": "x"}),)


def test_a_schema_of_many_circles_is_read_at_once() -> None:
    circles = {"anyOf": [{"$ref": "#/properties/it"}] * 12}
    tool = ToolSpec("look", "", {"properties": {"it": circles}})
    assert read(tool, Dialect.GLM, it="3") == (ToolCall("look", {"it": 3}),)


def test_a_nullable_type_takes_null() -> None:
    tool = tool_of({"type": "integer", "nullable": True})
    assert read(tool, Dialect.GLM, it="null") == (ToolCall("look", {"it": None}),)
