from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_swe.rollout.chat.tool_formats import (
    MAX_TURN,
    MOST_CALLS,
    TOOL_FORMATS,
    MalformedCall,
    ToolCall,
    parse,
    tool_format,
)
from tests.effort import FACTOR, assert_linear


def hermes(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def coder(name: str, **arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm45(name: str, **arguments) -> str:
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def glm47(name: str, **arguments) -> str:
    pairs = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


def minimax(name: str, **arguments) -> str:
    parameters = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</minimax:tool_call>'


WRITERS = {
    "hermes": hermes,
    "qwen25_coder": hermes,
    "qwen3_coder": coder,
    "glm45": glm45,
    "glm47": glm47,
    "minimax_m2": minimax,
}
OPENING = dict.fromkeys(WRITERS, "<tool_call>") | {"minimax_m2": "<minimax:tool_call>"}


@pytest.fixture(params=WRITERS)
def format(request) -> str:
    """Each that has tags around a call."""
    return request.param


def test_each_format_is_written_here_but_for_those_without_tags():
    assert {*TOOL_FORMATS} - {*WRITERS} == {"bash_block", "llama3"}


def test_calls_in_order_with_the_text_before_them(format):
    write = WRITERS[format]
    text = f"I think.\n{write('view', path='a.py')}\n{write('bash', command='ls')} bye"
    turn = parse(text, format)
    assert turn.text_before == "I think.\n"
    assert turn.calls == [ToolCall("view", {"path": "a.py"}), ToolCall("bash", {"command": "ls"})]
    assert turn.error is None


def test_no_call_is_no_error(format):
    assert parse("Just <b>text</b> with {json: 1}", format).calls == []
    assert parse("Just text", format).error is None
    assert parse("", format).error is None


def test_a_call_without_arguments(format):
    assert parse(WRITERS[format]("submit"), format).calls == [ToolCall("submit", {})]


def test_values_keep_their_white_space_and_odd_characters(format):
    value = "\n\n    def f():\n\t'\"\\ <x> & 漢字 🙂 </function\n"
    assert parse(WRITERS[format]("bash", command=value), format).calls[0].arguments == {"command": value}


def test_calls_before_a_malformed_one_are_kept(format):
    write = WRITERS[format]
    opening = OPENING[format]
    broken = f"{opening}{{oops}}{opening.replace('<', '</')}"
    turn = parse(f"{write('view', path='a')}{broken}{write('submit')}", format)
    assert turn.calls == [ToolCall("view", {"path": "a"})]
    assert turn.error
    assert turn.written == [turn.calls[0], MalformedCall("", "{oops}", turn.error), ToolCall("submit", {})]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>", "not valid JSON"),
        ("<tool_call>{", "not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {}}', "does not end in </tool_call>"),
        ('<tool_call>{"name": "a", "arguments": {}} trailing</tool_call>', "does not end in </tool_call>"),
        ('<tool_call>{"name": "a" "arguments": {}}</tool_call>', "not valid JSON"),
        ('<tool_call>["a"]</tool_call>', '"name": string'),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name": string'),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', '"name": string'),
        ('<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', "must be an object, got str"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON"),
        ('<tool_call>{"name": "a", "arguments": {"x": "line\nfeed"}}</tool_call>', "Invalid control character"),
        (f'<tool_call>{{"name": "a", "arguments": {{"x": {"9" * 5000}}}}}</tool_call>', "out of range"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "nested too deeply"),
        ("no opening </tool_call>", "without <tool_call>"),
    ],
)
def test_malformed_hermes(text, error):
    turn = parse(text, "hermes")
    assert turn.calls == []
    assert error in turn.error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>", "expected <function="),
        ("<tool_call>\n<function=>\n</function></tool_call>", "no proper name"),
        ("<tool_call>\n<function=bash", "no proper name"),
        ("<tool_call>\n<function=bash>\n<parameter=command>\nls", "does not end in </parameter>"),
        ("<tool_call>\n<function=bash>\n<parameter=>\nls\n</parameter>\n</function></tool_call>", "no proper name"),
        ("<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>", "expected </function>"),
        ("<tool_call>\n<function=bash>\n</function>\n", "expected </tool_call>"),
        (coder("a").replace("</function>", "<parameter=x>1</parameter><parameter=x>2</parameter></function>"), "twice"),
        ("ls </function>", "without <function="),
    ],
)
def test_malformed_qwen3_coder(text, error):
    turn = parse(text, "qwen3_coder")
    assert turn.calls == []
    assert error in turn.error


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("<tool_call>", "", ""),
        ('<tool_call>{"na', "", '{"na'),
        ('<tool_call>\n{"name": "a", "argu', "a", ', "argu'),
        ('<tool_call>\n{"name": "a", "arguments": {"x": "1', "a", '{"x": "1'),
        ('<tool_call>\n{"name": "a", "arguments": {"x": "f() {}', "a", '{"x": "f() {}'),
        ('<tool_call>\n{"name": "a", "arguments": {"x": "1}}\n</tool_call>', "a", '{"x": "1}'),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1,}}\n</tool_call>', "a", '{"x": 1,}'),
        ('<tool_call>\n{"name": "a", "arguments": {"x": NaN}}\n</tool_call>', "a", '{"x": NaN}'),
        ('<tool_call>\n{"name": "a", "arguments": "{}"}\n</tool_call>', "a", '"{}"'),
        ('<tool_call>\n{"name": "a", "arguments": [1]}\n</tool_call>', "a", "[1]"),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}\n</tool_call>', "a", {"x": 1}),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}}\n</tool_call>', "a", {"x": 1}),
        ('<tool_call>\n{"name": "a" "arguments": {"x": 1}}\n</tool_call>', "a", {"x": 1}),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n', "a", {"x": 1}),
        ('<tool_call>\n{"name": "\\u00e4", "arguments": {"x": 1}\n</tool_call>', "ä", {"x": 1}),
        ('<tool_call>\n{"arguments": {"name": "x"}}\n</tool_call>', "", '{"arguments": {"name": "x"}}'),
        ('<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>', "", '{"name": 3, "arguments": {}}'),
        ('I look.\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', "a", {"x": 1}),
        ("words </tool_call>", "", "words"),
    ],
)
def test_what_can_be_read_of_a_malformed_hermes_call(text, name, arguments):
    (call,) = parse(text, "hermes").written
    assert (call.name, call.arguments) == (name, arguments)
    assert call.error


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("<tool_call>", "", ""),
        ("<tool_call></tool_call>", "", ""),
        ("<tool_call>\n<function=bash", "", "<function=bash"),
        ("<function=>\n</function>", "", "<function=>"),
        ("<tool_call>\n<function=bash>\n<parameter=x>\nls", "bash", "<parameter=x>\nls"),
        ("<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>", "bash", "ls"),
        ("<function=bash>\n<parameter=x>\nls\n</function>", "bash", "<parameter=x>\nls"),
        ("<tool_call>\n<function=bash>\n<parameter=x>\nls\n</parameter>\n</function>", "bash", {"x": "ls"}),
        ("ls\n<parameter=x>\n1\n</parameter>\n</function>", "", "<parameter=x>\n1\n</parameter>"),
        ("words </function>", "", "words"),
    ],
)
def test_what_can_be_read_of_a_malformed_qwen3_coder_call(text, name, arguments):
    (call,) = parse(text, "qwen3_coder").written
    assert (call.name, call.arguments) == (name, arguments)
    assert call.error


SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "line": {"type": "integer"},
        "deep": {"type": "object"},
        "all": {"type": "boolean"},
        "any": {},
        "odd": True,
        "last": {"type": ["integer", "null"]},
        "some": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
        "free": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "open": {"anyOf": [{"type": "integer"}, {}]},
    },
}
TOOLS = ({"type": "function", "function": {"name": "view", "parameters": SCHEMA}},)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"path": "3", "any": "1", "odd": "1", "unknown": "1", "free": "1", "open": "1"}, {}),
        ({"line": "1.5", "all": "1", "deep": "[]", "last": "true", "some": "{}"}, {}),
        ({"line": "three", "all": "yes", "deep": "{", "last": "", "some": "NaN"}, {}),
        ({"line": "3", "all": "true", "deep": '{"a": [1]}'}, {"line": 3, "all": True, "deep": {"a": [1]}}),
        ({"last": "null", "some": "[1]"}, {"last": None, "some": [1]}),
        ({"line": "1" + "0" * 30}, {"line": 10**30}),
        ({"deep": "[" * 100_000}, {}),
    ],
)
@pytest.mark.parametrize("format", ["qwen3_coder", "glm45", "glm47", "minimax_m2"])
def test_a_value_that_is_no_text_by_the_tool_s_schema_is_read_as_json(format, written, read):
    text = WRITERS[format]("view", **written)
    assert parse(text, format, TOOLS).written == [ToolCall("view", written | read)]
    assert parse(text, format).written == [ToolCall("view", written)]


def test_a_hermes_call_has_its_own_types():
    given = {"line": "3", "path": 3}
    assert parse(hermes("view", **given), "hermes", TOOLS).written == [ToolCall("view", given)]


def test_calls_around_a_malformed_one_are_read(format):
    write = WRITERS[format]
    opening = OPENING[format]
    for broken in (opening, f"{opening}\n{{", opening + write("b", c="1").removeprefix(opening)[:12]):
        turn = parse(f"{write('view', path='a')}\n{broken}\n{write('submit')}", format)
        assert [type(call) for call in turn.written] == [ToolCall, MalformedCall, ToolCall]
        assert turn.written[2] == ToolCall("submit", {})


def test_a_turn_has_a_bounded_number_of_calls(format):
    for piece in (
        *("<tool_call>", "<function=a>", "<function=a><parameter=b>", '<tool_call>{"name": "', "</tool_call>"),
        *("<tool_call>a", "<minimax:tool_call>", '<minimax:tool_call><invoke name="a">', '<invoke name="a"></invoke>'),
    ):
        assert len(parse(piece * 8_000, format).written) <= MOST_CALLS


FILLINGS = [
    "```json\n", '```json\n{"name": "view", "arguments": {}}\n```\n', "```\n", "````\n", "```bash\nls\n```\n", "`",
    '\n{"name": "view", "arguments": {"path": [', '\n{"name": "view", "arguments": {}}', '\n{"name": [', "\n[\n", "\n ",
    "\n<tools>", '\n<tools>{"name": "view", "arguments": {}}</tools>', '\n{"name": 1}', "``` `", "```a",
    "<tool_call>", "<function=a></function>", '<tool_call>{"name": "a"}</tool_call>', "</tool_call>", "<", " ", "\n",
    "<parameter=b>", "<tool_call><function=a></function></tool_call>", "<function=", "x", "[", '{"a":', "1,", '"',
    "<arg_key>", "<tool_call>a<arg_key>b</arg_key><arg_value>", "<tool_call>a</tool_call>", "</arg_value>",
    "<|python_tag|>", "\n{\"name\": \"view\", \"parameters\": {", '; {"name": "view", "parameters": {}}', "; ",
    "<minimax:tool_call>", "<arg_key>b</arg_key><arg_value>c</arg_value>", '<invoke name="a"></invoke>',
    '<invoke name="', "</invoke>", '<parameter name="b">', '<parameter name="b">c</parameter>', "</minimax:tool_call>",
]  # fmt: skip


STARTS = {
    "hermes": ["<tool_call>", "<tool_call>["],
    "qwen25_coder": ["```json\n", '{"name": "view", "arguments": {"a":'],
    "bash_block": ["```bash\n"],
    "llama3": ["<|python_tag|>", '{"name": "view", "parameters": {"a":'],
    "qwen3_coder": ["<tool_call>", "<function=a>", "<function=a><parameter=b>"],
    "glm47": ["<tool_call>", "<tool_call>a", "<tool_call>a<arg_key>b</arg_key><arg_value>"],
    "minimax_m2": [
        "<minimax:tool_call>",
        '<minimax:tool_call><invoke name="a">',
        '<minimax:tool_call><invoke name="a"><parameter name="b">',
    ],
}


@pytest.mark.parametrize(("format", "start"), [(name, start) for name in STARTS for start in ("", *STARTS[name])])
def test_any_turn_is_parsed_in_time_that_grows_with_it(format, start: str):
    for filling in FILLINGS:
        for small in ((MAX_TURN - len(start)) // FACTOR, (8 << 20) // FACTOR):
            texts = {size: start + filling * (size // len(filling)) for size in (small, FACTOR * small)}
            assert_linear(lambda size, texts=texts: parse(texts[size], format, TOOLS), small, (filling, small))


@pytest.mark.parametrize(
    ("text", "name", "arguments", "error"),
    [
        ("<tool_call>", "", "", "name of a tool"),
        ("<tool_call></tool_call>", "", "", "name of a tool"),
        ('<tool_call>{"name": "a"}</tool_call>', "", '{"name": "a"}', "name of a tool"),
        ("<tool_call><arg_key>a</arg_key></tool_call>", "", "<arg_key>a</arg_key>", "name of a tool"),
        ("<tool_call>bash", "bash", "", "expected </tool_call>"),
        ("<tool_call>bash\nls</tool_call>", "bash", "ls", "expected </tool_call>"),
        ("<tool_call>bash<arg_key>c", "bash", "<arg_key>c", "a key does not end in </arg_key>"),
        ("<tool_call>bash<arg_key>c</arg_key>ls</tool_call>", "bash", "<arg_key>c</arg_key>ls", "expected <arg_value>"),
        (
            *("<tool_call>bash\n<arg_key>c</arg_key>\n<arg_value>ls", "bash"),
            *("<arg_key>c</arg_key>\n<arg_value>ls", "'c' does not end in </arg_value>"),
        ),
        (glm47("a", x=1).replace("</tool", "<arg_key>x</arg_key><arg_value>2</arg_value></tool"), "a", None, "twice"),
        (glm47("a", x=1).removesuffix("</tool_call>"), "a", None, "expected </tool_call>"),
        ("words <arg_key>a</arg_key></tool_call>", "", "<arg_key>a</arg_key>", "without <tool_call>"),
    ],
)
def test_a_malformed_glm_call(text, name, arguments, error):
    (call,) = parse(text, "glm47").written
    assert isinstance(call, MalformedCall)
    assert (call.name, arguments or call.arguments) == (name, call.arguments)
    assert error in call.error


@pytest.mark.parametrize(
    ("text", "name", "arguments", "error"),
    [
        ("<minimax:tool_call>", "", "", "expected <invoke"),
        ("<minimax:tool_call></minimax:tool_call>", "", "", "expected <invoke"),
        ('<minimax:tool_call><invoke name="a', "", '<invoke name="a', "no proper name"),
        ('<minimax:tool_call><invoke name=""></invoke>', "", '<invoke name="">', "no proper name"),
        ('<minimax:tool_call><invoke name="a">ls</invoke>', "a", "ls", "expected </invoke>"),
        (
            *('<minimax:tool_call><invoke name="a"><parameter name="x">ls', "a"),
            *('<parameter name="x">ls', "'x' does not end in </parameter>"),
        ),
        (minimax("a", x="1").removesuffix("</minimax:tool_call>"), "a", {"x": "1"}, "expected </minimax:tool_call>"),
        (minimax("a", x="1", y="2").replace('"y"', '"x"'), "a", None, "twice"),
        ('I look <invoke name="a"></invoke></minimax:tool_call>', "", '<invoke name="a"></invoke>', "without <minimax"),
    ],
)
def test_a_malformed_minimax_call(text, name, arguments, error):
    (call,) = parse(text, "minimax_m2").written
    assert isinstance(call, MalformedCall)
    assert (call.name, arguments or call.arguments) == (name, call.arguments)
    assert error in call.error


def test_a_block_of_minimax_holds_calls_in_order_and_goes_on_behind_a_malformed_one():
    one, two = '<invoke name="a">\n</invoke>', '<invoke name="b">\n<parameter name="x">\n1\n</parameter>\n</invoke>'
    block = "<minimax:tool_call>\n{}\n</minimax:tool_call>".format
    calls = [ToolCall("a", {}), ToolCall("b", {"x": "\n1\n"})]
    assert parse(block(f"{one}\n{two}"), "minimax_m2").written == calls
    broken = '<invoke name="c">\nls\n</invoke>'
    first, malformed, last = parse(block(f"{one}\n{broken}\n{two}"), "minimax_m2").written
    assert ([first, last], malformed.name, malformed.arguments) == (calls, "c", "ls")
    # Outside of a block it is text.
    assert parse(f"{block(one)}\nso {two}", "minimax_m2").written == calls[:1]
    assert parse(one, "minimax_m2").written == []


def test_glm_closing_tag_inside_a_value_belongs_to_the_value():
    assert parse(glm47("bash", command="grep '</tool_call>'"), "glm47").calls == [
        ToolCall("bash", {"command": "grep '</tool_call>'"})
    ]


@pytest.mark.parametrize(
    ("format", "rendered"),
    [
        ("hermes", [hermes("a", x="1", y=[2]), hermes("b")]),
        ("qwen3_coder", [coder("a", x="1", y=[2]), coder("b")]),
        ("glm45", [glm45("a", x="1", y=[2]), glm45("b")]),
    ],
)
def test_calls_are_written_as_the_models_write_them(format, rendered):
    texts = tool_format(format).render([ToolCall("a", {"x": "1", "y": [2]}), ToolCall("b", {})])
    assert "".join(texts) == "\n".join(rendered)
    assert all("<" not in text for text in texts[1::2])


def test_calls_of_a_turn_are_written_without_a_gap_or_in_one_block():
    calls = [ToolCall("a", {"x": "1"}), ToolCall("b", {})]
    assert "".join(tool_format("glm47").render(calls)) == glm47("a", x="1") + glm47("b")
    end, start = "</minimax:tool_call>", "<minimax:tool_call>\n"
    block = minimax("a", x="1").removesuffix(end) + minimax("b").removeprefix(start)
    assert "".join(tool_format("minimax_m2").render(calls)) == block


def test_hermes_closing_tag_inside_a_string_belongs_to_the_string():
    text = hermes("bash", command="grep '</tool_call>' <tool_call>")
    assert parse(text, "hermes").calls == [ToolCall("bash", {"command": "grep '</tool_call>' <tool_call>"})]


def test_qwen3_coder_without_the_outer_tags():
    assert parse("<function=view>\n<parameter=path>\na\n</parameter>\n</function>", "qwen3_coder").calls == [
        ToolCall("view", {"path": "a"})
    ]


def test_unknown_format_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'hermes'"):
        parse("", "herms")


TAGS = [
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", ">"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "a"),
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', "</invoke>", '<parameter name="'),
]
JSON = [
    '{"name": "a", "arguments": {',
    "{",
    "}",
    "[",
    '"',
    "\n",
    "\\",
    "\\ud83d",
    "\ud800",
    "1e999",
    "-",
    "NaN",
    "null",
]
MARKDOWN = [
    "```json\n",
    "```\n",
    "````",
    "```bash\n",
    "<tools>",
    "</tools>",
    "\n",
    '"view"',
    '"arguments": {',
    '"name": ',
]
PIECES = st.sampled_from([*TAGS, *JSON, *MARKDOWN])


@settings(deadline=None)
@given(st.lists(PIECES | st.text(max_size=5)).map("".join))
def test_no_text_makes_a_parser_raise(text):
    for format in TOOL_FORMATS:
        for tools in ((), TOOLS):
            turn = parse(text, format, tools)
            assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in turn.calls)
            assert text.startswith(turn.text_before)


NAMES = st.text("abcdefgh_", min_size=1)
VALUES = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES)), min_size=1, max_size=3))
def test_what_is_rendered_is_what_is_parsed(format, calls):
    """Whatever the values hold, but for the format's own closing tags in a format that has only text."""
    calls = [
        ToolCall(
            name, arguments if WRITERS[format] is hermes else {k: v.replace("</", "(") for k, v in arguments.items()}
        )
        for name, arguments in calls
    ]
    turn = parse(f"So.\n{''.join(tool_format(format).render(calls))}", format)
    assert (turn.text_before, turn.written) == ("So.\n", calls)
