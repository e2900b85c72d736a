"""No call is executed with parts left unread: texts of models, most of them from public reports, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.test_dialects import read
from xp.envs.base import ToolSpec
from xp.episode.call_data import MAX_FAILED
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import MalformedCall, ToolCall
from xp.spec.dialect import Dialect

TEXTS = {"type": "object", "properties": {name: {"type": "string"} for name in ("text", "path", "query")}}
TOOLS = [ToolSpec(name, "", TEXTS) for name in ("look", "write_file", "search", "web-search", "grocery.order")]
LOOK = ToolCall("look", {"text": "a"})
JSON_CALL = '{"name": "look", "arguments": {"text": "a"}}'


def calls(dialect: Dialect, text: str) -> Any:
    return read(dialect, text, TOOLS)


@pytest.mark.parametrize("key", ["arguments", "parameters"])
@pytest.mark.parametrize("wrap", ["{}", '{{"type": "function", "function": {}}}', '{{"function": {}}}'])
@pytest.mark.parametrize("dialect", [Dialect.HERMES, Dialect.LLAMA_JSON])
def test_both_words_for_arguments_are_read_in_every_json_dialect(dialect: Dialect, wrap: str, key: str) -> None:
    text = wrap.format(json.dumps({"name": "look", key: {"text": "a"}}))
    assert calls(dialect, f"<tool_call>{text}</tool_call>") == (LOOK,)
    text = json.dumps({"type": "function", "name": "look", key: {"text": "a"}})
    assert calls(dialect, f"<tool_call>{text}</tool_call>") == (LOOK,)


@pytest.mark.parametrize(
    "call",
    [
        {"name": "look", "args": {"text": "a"}},
        {"name": "look", "text": "a"},
        {"name": "look", "arguments": {}, "text": "a"},
        {"name": "look", "arguments": {"text": "a"}, "parameters": {"text": "b"}},
        {"type": "function", "function": {"name": "look", "arguments": {}}, "arguments": {"text": "a"}},
        {"type": "look", "name": "look", "arguments": {}},
        {"name": "look", "arguments": [1]},
    ],
)
def test_a_call_with_other_keys_is_malformed_and_says_which(call: dict[str, Any]) -> None:
    (found,) = calls(Dialect.HERMES, f"<tool_call>{json.dumps(call)}</tool_call>")
    assert isinstance(found, MalformedCall)
    assert "arguments" in found.fault or '"name"' in found.fault
    assert len(found.fault) < 250


def test_a_list_that_calls_no_tool_is_an_answer() -> None:
    for text in ("[f(x=1)]", "so [f(2) = 4]", "[go(", "[1, 2]", "[]"):
        assert calls(Dialect.PYTHONIC, text) == ()
    assert read(Dialect.PYTHONIC, "[look(text='a')]", ()) == ()


def look(**arguments: Any) -> ToolCall:
    return ToolCall("look", arguments)


def xml(body: str) -> str:
    return f"<tool_call>\n<function=look>\n{body}\n</function>\n</tool_call>"


def glm(body: str) -> str:
    return f"<tool_call>look\n{body}</tool_call>"


def deepseek(*calls: str) -> str:
    inner = "\n".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi(*calls: str) -> str:
    inner = "".join(f"<|tool_call_begin|>{call}<|tool_call_end|>" for call in calls)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def minimax(body: str) -> str:
    return f'<minimax:tool_call>\n<invoke name="look">\n{body}</invoke>\n</minimax:tool_call>\n'


def cohere(body: str) -> str:
    return f"<|START_ACTION|>{body}<|END_ACTION|>"


UNKNOWN = ToolCall("lok", {"text": "a"})
XML_A = "<parameter=text>\na\n</parameter>"
GLM_TEXT = "<arg_key>text</arg_key><arg_value>"
NESTED = json.loads("[" * 32 + "]" * 32)
READ_WHOLE: list[tuple[Dialect, str, list[Any]]] = [
    # vllm 19024, dynamo 9536: calls with text or `;` between and around them
    (Dialect.LLAMA_JSON, f"I look. {JSON_CALL} Then: {JSON_CALL};{JSON_CALL}\nWould you like more?", [LOOK] * 3),
    (Dialect.LLAMA_JSON, f"[{JSON_CALL}, {JSON_CALL}]", [LOOK, LOOK]),
    (Dialect.LLAMA_JSON, f'{JSON_CALL} {{"name": "lok", "parameters": {{"text": "a"}}}}', [LOOK, UNKNOWN]),
    (Dialect.LLAMA_JSON, '<|python_tag|>{"arguments": {"text": "a"}, "name": "look"}', [LOOK]),
    (Dialect.LLAMA_JSON, f'{JSON_CALL} {{"name": "look"}} {{"name": "Ada"}}', [LOOK, look()]),
    *(
        (Dialect.LLAMA_JSON, f"{other} {JSON_CALL}", [LOOK])
        for other in ('{"city": "Rome"}', '{"name": 3}', '{"function": [1]}', '{"name": "lok"}', '{"city" or', "{}")
    ),
    (Dialect.PYTHONIC, "[look(text='a'), lok(text='a')] and then [lok(text='a')]", [LOOK, UNKNOWN, UNKNOWN]),
    # vllm 48171, sglang 27910 and 34237, mlx-lm 1246
    (Dialect.PYTHONIC, "<|tool_call_start|> [look(text='a')]<|tool_call_end|>", [LOOK]),
    (Dialect.PYTHONIC, "[look(text='grep -F \"]\" a.txt')]", [look(text='grep -F "]" a.txt')]),
    (Dialect.PYTHONIC, "[look(text='cat > f << EOF\n\tx\r\nEOF')]", [look(text="cat > f << EOF\n\tx\r\nEOF")]),
    (Dialect.PYTHONIC, r"[look(text='a \\', path='\d+\.py')]", [look(text="a \\", path=r"\d+\.py")]),
    (Dialect.PYTHONIC, "[look(longitude=-74.0046539, limit=+7)]", [look(longitude=-74.0046539, limit=7)]),
    (Dialect.PYTHONIC, "[look(size=(800, 600), tags={'a', 'b'})]", [look(size=[800, 600], tags=["a", "b"])]),
    (Dialect.PYTHONIC, "[look(from=1, max-results=2)]", [look(**{"from": 1, "max-results": 2})]),
    (Dialect.PYTHONIC, "[web-search(query='a')]", [ToolCall("web-search", {"query": "a"})]),
    (
        Dialect.PYTHONIC,
        "[grocery.order(x={'n': [1, {'k': null}], 'o': True})]",
        [ToolCall("grocery.order", {"x": {"n": [1, {"k": None}], "o": True}})],
    ),
    (
        Dialect.PYTHONIC,
        '[look(text="""it\'s [a] "b" """, path=r\'C:\\new\')]',
        [look(text='it\'s [a] "b" ', path="C:\\new")],
    ),
    (Dialect.PYTHONIC, r"[look(text=r'\d+', path=R'\w')]", [look(text=r"\d+", path=r"\w")]),
    (Dialect.PYTHONIC, "[look(ok=true, no=false, nil=null, k=None)]", [look(ok=True, no=False, nil=None, k=None)]),
    (Dialect.PYTHONIC, f"[look(text={'[' * 32}{']' * 32})]", [look(text=NESTED)]),
    (Dialect.PYTHONIC, "[look(text='a' 'b', n=0x1F, m=1_000, o=.5)]", [look(text="ab", n=31, m=1000, o=0.5)]),
    # ollama 16686, 17742, 18530: no <tool_call>
    (Dialect.QWEN_XML, f"I'll use it.\n\n<function=look>\n{XML_A}\n</function>\n</tool_call>", [LOOK]),
    (Dialect.QWEN_XML, f"{xml(XML_A)}\n<function=look>\n</function>", [LOOK, look()]),
    (Dialect.QWEN_XML, xml(f"</function><function=look>{XML_A}"), [look(), LOOK]),
    # Rapid-MLX 1515, AReaL 1458, local-inference-lab/vllm 639: tags in a value
    (
        Dialect.QWEN_XML,
        xml("<parameter=text>\nIt ends with </parameter> here.\n</parameter>"),
        [look(text="It ends with </parameter> here.")],
    ),
    (
        Dialect.QWEN_XML,
        xml("<parameter=text>\n<parameter=n>1</parameter> is one\n</parameter>"),
        [look(text="<parameter=n>1</parameter> is one")],
    ),
    (
        Dialect.GLM,
        glm(f"{GLM_TEXT}use </arg_value> and </tool_call> in docs</arg_value>"),
        [look(text="use </arg_value> and </tool_call> in docs")],
    ),
    (Dialect.GLM, glm(f"{GLM_TEXT}.<</arg_value>"), [look(text=".<")]),
    # vllm 45167
    (
        Dialect.HERMES,
        '<tool_call>{"name": "look", "arguments": {"text": "</tool_call>"}}</tool_call></tool_call>',
        [look(text="</tool_call>")],
    ),
    (Dialect.HERMES, f"{JSON_CALL}</tool_call>", [LOOK]),
    # llama.cpp 15181, dynamo 10366: the recipient in the role, or on another channel
    (Dialect.HARMONY, '<|start|>assistant to=functions.look<|channel|>commentary<|message|>{"text": "a"}', [LOOK]),
    (Dialect.HARMONY, '<|channel|>analysis to=functions.look code<|message|>{"text": "a"}<|call|>', [LOOK]),
    # Mistral's three formats (Nemo, Small 3.2, Ministral 3)
    (Dialect.MISTRAL, f"[TOOL_CALLS][{JSON_CALL}, {JSON_CALL}]", [LOOK, LOOK]),
    (Dialect.MISTRAL, '[TOOL_CALLS] [{"name": "look", "arguments": {"text": "a"}, "id": "call00001"}]', [LOOK]),
    (Dialect.MISTRAL, '[TOOL_CALLS]look[CALL_ID]call00001[ARGS]{"text": "a"}', [LOOK]),
    (
        Dialect.MISTRAL,
        '[THINK]I [TOOL_CALLS]no[/THINK]I look.[TOOL_CALLS]look{"text": "a"}[TOOL_CALLS]look[ARGS]{}',
        [LOOK, look()],
    ),
    # DeepSeek V3's, which R1 shares
    (
        Dialect.DEEPSEEK,
        deepseek('function<｜tool▁sep｜>look\n```json\n{"text": "a"}\n```', 'look<｜tool▁sep｜>{"text": "a"}'),
        [LOOK, LOOK],
    ),
    (Dialect.DEEPSEEK, deepseek('function<｜tool▁sep｜>{"text": "a"}'), [ToolCall("function", {"text": "a"})]),
    (
        Dialect.KIMI,
        kimi('functions.look:0<|tool_call_argument_begin|>{"text": "a"}', "look:12 <|tool_call_argument_begin|> {}"),
        [LOOK, look()],
    ),
    (
        Dialect.GEMMA,
        'thought <channel|>I look.<|tool_call>call:look{text:<|"|>a<|"|>}<tool_call|>'
        "<|tool_call>call:look{}<tool_call|>",
        [LOOK, look()],
    ),
    (
        Dialect.GEMMA,
        '<|tool_call>call:look{text:<|"|>a, {b}:<tool_call|>\n"<|"|>}<tool_call|>',
        [look(text='a, {b}:<tool_call|>\n"')],
    ),
    (
        Dialect.GEMMA,
        '<|tool_call>call:look{n:-2.5e3,ok:true,no:null,l:[1,<|"|>2<|"|>,{k v:[]}],<|"|>a b<|"|>:big hall}<tool_call|>',
        [look(n=-2500.0, ok=True, no=None, l=[1, "2", {"k v": []}], **{"a b": "big hall"})],
    ),
    (
        Dialect.COHERE,
        '<|START_THINKING|>x<|END_THINKING|><|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "look",'
        ' "parameters": {"text": "a"}},\n'
        ' {"tool_call_id": "1", "tool_name": "look", "parameters": {}}\n]<|END_ACTION|>',
        [LOOK, look()],
    ),
    (Dialect.MINIMAX, minimax('<parameter name="text">a</parameter>\n') * 2, [LOOK, LOOK]),
    (
        Dialect.MINIMAX,
        minimax('<parameter name="text">it is </parameter> here\n</parameter>'),
        [look(text="it is </parameter> here\n")],
    ),
]


@pytest.mark.parametrize(("dialect", "text", "expected"), READ_WHOLE)
def test_a_turn_is_read_whole(dialect: Dialect, text: str, expected: list[Any]) -> None:
    assert list(calls(dialect, text)) == expected


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (Dialect.LLAMA_JSON, '{"name": "lok", "parameters": {"text": "a"}}'),
        (Dialect.LLAMA_JSON, '{"name": "look"}'),
        (Dialect.LLAMA_JSON, '{"city": "Rome"} and {"name": 3, "parameters": {}}'),
        (Dialect.LLAMA_JSON, '{"city" or {"name'),
        (Dialect.PYTHONIC, "[lok(text='a')] [1, 2]"),
    ],
)
def test_data_that_calls_no_tool_is_an_answer(dialect: Dialect, text: str) -> None:
    assert calls(dialect, text) == ()


def test_after_many_broken_beginnings_nothing_is_read() -> None:
    broken = ['{"a ' * number + JSON_CALL for number in (MAX_FAILED - 1, MAX_FAILED)]
    assert [calls(Dialect.LLAMA_JSON, text) for text in broken] == [(LOOK,), ()]
    broken = ["[a(1 " * number + "[look(text='a')]" for number in (MAX_FAILED - 1, MAX_FAILED)]
    assert [bool(calls(Dialect.PYTHONIC, text)) for text in broken] == [True, False]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (Dialect.LLAMA_JSON, '{"name": "look", "parameters": {"text": "é", "n": 1}}'),
        (Dialect.PYTHONIC, "[look(text='é', n=1)]"),
    ],
)
def test_a_call_is_written_in_its_dialect(dialect: Dialect, text: str) -> None:
    assert SYNTAX[dialect].write("look", {"text": "é", "n": 1}) == text


HALF: list[tuple[Dialect, str]] = [
    (Dialect.HERMES, f"<tool_call>{JSON_CALL}{JSON_CALL}</tool_call>"),
    (Dialect.HERMES, f"<tool_call>{JSON_CALL} and so</tool_call>"),
    (Dialect.HERMES, f"<tool_call>I call {JSON_CALL}</tool_call>"),
    (Dialect.HERMES, f"<tool_call>{JSON_CALL}</tool_call>\n{JSON_CALL}</tool_call>"),
    (Dialect.LLAMA_JSON, '{"name": "look", "parameters": {"text": {"name": "look", "parameters": {}}'),
    (Dialect.LLAMA_JSON, '{"name": "look", "parameters": {}, "text": "a"}'),
    (Dialect.LLAMA_JSON, '{"name": "look", "parameters": {"text": "a", "text": "b"}}'),
    (Dialect.LLAMA_JSON, '{"type": "function", "function": {"name": "look", "parameters": {"text": NaN}}}'),
    (Dialect.PYTHONIC, "[look('Paris', text='a')]"),
    (Dialect.PYTHONIC, "[look(**{'text': 'a'})]"),
    (Dialect.PYTHONIC, "[look(path='b', **{'text': 'a'})]"),
    (Dialect.PYTHONIC, "[look(text=x) for x in 'ab']"),
    (Dialect.PYTHONIC, "[look(text={1: 2, 'a': 3})]"),
    (Dialect.PYTHONIC, "[look(text={'a': 2, 'a': 3})]"),
    (Dialect.PYTHONIC, f"[look(text={'[' * 33}{']' * 33})]"),
    (Dialect.PYTHONIC, "[look(text='a', text='b')]"),
    (Dialect.PYTHONIC, "[look(text='a' # , path='b'\n)]"),
    (Dialect.PYTHONIC, "[look(text='a'), 3]"),
    (Dialect.PYTHONIC, "[look(text='a') look(text='b')]"),
    (Dialect.PYTHONIC, "[look(text=[look(text='a')])]"),
    (Dialect.PYTHONIC, "[look(text='a').upper()]"),
    (Dialect.PYTHONIC, "[look(text='sed -n '1,9p' f.py')]"),
    (Dialect.PYTHONIC, "[look(text=f'{a}')]"),
    (Dialect.PYTHONIC, "[look(text=b'a')]"),
    (Dialect.PYTHONIC, "[look(text=1 + 2)]"),
    (Dialect.PYTHONIC, "[look(text={1: 2})]"),
    (Dialect.PYTHONIC, "[look(text={[1]: 2})]"),
    (Dialect.PYTHONIC, "[look(text=1e999)]"),
    (Dialect.PYTHONIC, "[look(text='a'), "),
    (Dialect.PYTHONIC, f"[look(text={'[' * 40}{']' * 40})]"),
    (Dialect.PYTHONIC, f"[look(text={'-' * 100_000}1)]"),
    (Dialect.PYTHONIC, f"[look(text={'1+' * 50_000}1)]"),
    (Dialect.PYTHONIC, f"[look(text={'9' * 5000})]"),
    (Dialect.QWEN_XML, "<tool_call><function=\n></function></tool_call>"),
    (Dialect.QWEN_XML, xml("text=a")),
    (Dialect.QWEN_XML, xml(f"{XML_A} or <parameter=path>b</parameter>")),
    (Dialect.QWEN_XML, f"<tool_call><function=look></function>{XML_A}</tool_call>"),
    (Dialect.QWEN_XML, f"<tool_call><function=look></function>{JSON_CALL}</tool_call>"),
    (Dialect.QWEN_XML, xml(XML_A + XML_A)),
    # xalgorix 278: the name is lost
    (Dialect.QWEN_XML, f"_plan>\n{XML_A}\n</function>"),
    (Dialect.QWEN_XML, f"<tool_call>\nlook>\n{XML_A}\n</function></tool_call>"),
    # q27 35, vllm 23099, ollama 17914
    (Dialect.QWEN_XML, xml("<parameter=text!!</parameter>")),
    (Dialect.QWEN_XML, xml("<parameter=text>\na\n<parameter=path>\nb\n</parameter>")),
    (Dialect.GLM, glm(f"and{GLM_TEXT}a</arg_value>")),
    # vllm 49248, ollama 14656, vllm 54971
    (Dialect.GLM, "<tool_call>search<arg_key>query</arg_key>how many vacation days left</arg_value></tool_call>"),
    (Dialect.GLM, glm(f"<arg_key>query</arg_key>lost</arg_value>{GLM_TEXT}a</arg_value>")),
    (Dialect.GLM, glm(f"{GLM_TEXT}a")),
    (Dialect.GLM, glm(f"{GLM_TEXT}a\n<arg_key>path</arg_key><arg_value>b</arg_value>")),
    (Dialect.GLM, glm("<arg_key>path</arg_key></arg_key><arg_value>/tmp/x</arg_value>")),
    (Dialect.GLM, glm(f"{GLM_TEXT}a</arg_value> or b")),
    (Dialect.HARMONY, '<|channel|>commentary to=functions.look {"text": "a"}<|call|>'),
    (Dialect.HARMONY, '<|channel|>commentary to=functions.look<|message|>{"text": "a"} and {"text": "b"}<|call|>'),
    (Dialect.MISTRAL, "[TOOL_CALLS]"),
    (Dialect.MISTRAL, "[TOOL_CALLS]look"),
    (Dialect.MISTRAL, "[TOOL_CALLS]look[ARGS]"),
    (Dialect.DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"),
    (Dialect.KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"),
    (Dialect.MISTRAL, "[TOOL_CALLS][]"),
    (Dialect.MISTRAL, '[TOOL_CALLS]look[ARGS]{"text": "a"} and {"text": "b"}'),
    (Dialect.MISTRAL, '[TOOL_CALLS][{"name": "look", "arguments": {"text": "a"}}'),
    (Dialect.DEEPSEEK, deepseek('look {"text": "a"}')),
    (Dialect.DEEPSEEK, deepseek('look<｜tool▁sep｜>{"text": "a"')),
    (Dialect.DEEPSEEK, "<｜tool▁calls▁begin｜>look<｜tool▁calls▁end｜>"),
    # both engines need the number
    (Dialect.KIMI, kimi('functions.look<|tool_call_argument_begin|>{"text": "a"}')),
    (Dialect.KIMI, kimi('3<|tool_call_argument_begin|>{"text": "a"}')),
    (Dialect.KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_arg"),
    (Dialect.GEMMA, "<|tool_call>call:look{text:<tool_call|>"),
    (Dialect.GEMMA, "<|tool_call>call:look(text=1)<tool_call|>"),
    (Dialect.GEMMA, '<|tool_call>call:look{text:<|"|>a}<tool_call|>'),
    (Dialect.GEMMA, '<|tool_call>call:look{text:<|"|>a<|"|>,text:<|"|>b<|"|>}<tool_call|>'),
    (Dialect.GEMMA, '<|tool_call>call:look{text:<|"|>a<|"|>}}<tool_call|>'),
    (Dialect.COHERE, cohere('[{"tool_call_id": "0", "tool_name": "look", "id": {"text": "a"}}]')),
    (Dialect.COHERE, cohere('[{"tool_call_id": "0", "tool_name": "look", "name": "go", "parameters": {}}]')),
    (Dialect.COHERE, cohere('[{"tool_call_id": "0", "tool_name": "look", "parameters": {"text": "a"}}')),
    (Dialect.MINIMAX, minimax("<parameter name='text'>a</parameter>")),
    (Dialect.MINIMAX, minimax('<parameter name="text">a')),
    # lmstudio 942: cut
    (Dialect.HARMONY, '<|channel|>commentary to=functions.look<|constrain|>json<|message|>{"text": {"a": "b"'),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "text"), HALF)
def test_a_call_that_cannot_be_read_whole_is_malformed_and_says_why(dialect: Dialect, text: str) -> None:
    (found,) = calls(dialect, text)
    assert isinstance(found, MalformedCall)
    assert 10 < len(found.fault) < 250
