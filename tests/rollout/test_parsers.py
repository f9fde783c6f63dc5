from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout.chat.tool_formats import MAX_TURN, TOOL_FORMATS, ToolCall, parse


def hermes(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def coder(name: str, **arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


WRITERS = {"hermes": hermes, "qwen3_coder": coder}


@pytest.fixture(params=TOOL_FORMATS)
def format(request) -> str:
    return request.param


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
    turn = parse(f"{write('view', path='a')}<tool_call>oops</tool_call>{write('submit')}", format)
    assert turn.calls == [ToolCall("view", {"path": "a"})]
    assert turn.error


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


TAGS = ["<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", ">"]
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
PIECES = st.sampled_from([*TAGS, *JSON])


@settings(deadline=None)
@given(st.lists(PIECES | st.text(max_size=5)).map("".join))
def test_no_text_makes_a_parser_raise(text):
    for format in TOOL_FORMATS:
        turn = parse(text, format)
        assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in turn.calls)
        assert text.startswith(turn.text_before)


@settings(deadline=None)
@given(
    st.text("abcdefgh_", min_size=1),
    st.dictionaries(st.text("xyz_", min_size=1), st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_what_is_written_is_what_is_parsed(name, arguments):
    assert parse(hermes(name, **arguments), "hermes").calls == [ToolCall(name, arguments)]
    tame = {key: value.replace("<", "(") for key, value in arguments.items()}
    assert parse(coder(name, **tame), "qwen3_coder").calls == [ToolCall(name, tame)]


FILLINGS = [
    "<tool_call>", "<function=a></function>", '<tool_call>{"name": "a"}</tool_call>', "</tool_call>", "<", " ", "\n",
    "<parameter=b>", "<tool_call><function=a></function></tool_call>", "<function=", "x", "[", '{"a":', "1,", '"',
]  # fmt: skip


@pytest.mark.parametrize("start", ["", "<tool_call>", "<tool_call>[", "<function=a>", "<function=a><parameter=b>"])
def test_any_turn_is_parsed_within_50_ms(format, start: str):
    for filling in FILLINGS:
        for size in (MAX_TURN - len(start), 8 << 20):
            text = start + filling * (size // len(filling))
            seconds = []
            for _ in range(2):  # the better of two, for a busy machine
                begun = time.thread_time()
                parse(text, format)
                seconds.append(time.thread_time() - begun)
            assert min(seconds) < 0.05, (filling, size)
