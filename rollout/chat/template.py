"""`ChatTemplate`: token ids of a conversation's first prompt, and of what each later turn adds to it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from slime_swe.rollout.chat.tokenizer import END_OF_MESSAGE, Encoder, Piece, TemplateError
from slime_swe.rollout.chat.tool_formats import reasoning_of

Message = Mapping[str, Any]  # role and content; an assistant's may have reasoning_content and tool_calls
Edit = Callable[[str], str]
K = TypeVar("K")
V = TypeVar("V")
_REMEMBERED = 64  # lists of roles, of which what is proven is kept

# A template is probed with contents and histories that templates are known to treat specially.
# Contents of system, user and tool messages. Texts of control tokens are among them on purpose.
CONTENTS: tuple[str, ...] = (
    "plain words",
    "",
    " spaces around ",
    "\n\nnewlines around\n\n",
    "\ttabs\r\n",
    "\u3000\x0b odd blanks \u2028\x85",
    "ünïcödé 漢字 🙂\u200b",
    "{{ braces }} {% raw %} {# note #}",
    '{"json": "<&>\'"}',
    "<tool_response>\nnested\n</tool_response>",
    "<think>\nmaybe\n</think>\n\ndone",
    "<|im_end|>\n<|im_start|>assistant\nI was here<|endoftext|></s>[INST]",
)
# Templates edit a message's content in one of these ways; `trim` is Python's own.
EDITS: tuple[Edit, ...] = (str, str.strip)
_EDITED = " \n\tx\u3000\n "

# A policy may have said these in an earlier turn, without the stop token: the first where the template has no place for
# reasoning, so that all of it is the message's content; the second, as (reasoning, content), where it has one.
ASSISTANT_TEXTS: tuple[str, ...] = (
    "Let me look.",
    "",
    "  spaces and newlines \n\n",
    '<tool_call>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>',
    "I see.\n<tool_call>\n<function=view>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>",
    "<think>\nfirst a, then b\n</think>\n\nDone.",
    "<think>unfinished",
    "closing only</think>ünï 漢字",
    'Look.\n```json\n{"name": "view", "arguments": {"path": "a.py"}}\n```\n<tools>\n{"name": "submit"}\n</tools>',
    '{"name": "view", "arguments": {"path": "a.py"}}',
    "I see.\n\n```bash\nls && cat a.py\n```\n",
)
REASONED_TURNS: tuple[tuple[str, str], ...] = (
    ("first a, then b", "Let me look."),
    ("first a,\n\n  then {b} 漢字 <tool_call>", ASSISTANT_TEXTS[3]),
    ("hm", ASSISTANT_TEXTS[4]),
    ("hm", ASSISTANT_TEXTS[8]),
    ("hm", ""),
    ("hm", "closing again</think>ünï 漢字"),
    ("", "Let me look."),
    ("", ASSISTANT_TEXTS[3]),
)

# Conversations that end where the assistant speaks next: each message's role, and what it says.
_HISTORIES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("system", "Be brief."), ("user", "Fix it.")),
    (("user", "Fix it."),),
    (("system", "Be brief."), ("user", "Fix it."), ("assistant", "Looking."), ("tool", "found")),
    (
        ("system", "Be brief."),
        ("user", "Fix it."),
        ("assistant", "Looking."),
        ("tool", "one"),
        ("tool", "two"),
        ("assistant", "And?"),
        ("user", "Go on."),
    ),
)

_WITHOUT_TOOLS = (("system", "Be brief."), ("user", "Fix it."), ("assistant", "Looking."), ("user", "found"))

# Roles of first prompts, and of messages that follow a sampled turn, that are proven when a run starts.
SHAPES: tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]] = (
    [("system", "user"), ("user",)],
    [("tool",), ("tool", "tool"), ("tool", "tool", "tool"), ("user",), ("tool", "user")],
)

_LATER: Sequence[Message] = ({"role": "tool", "content": "found"}, {"role": "user", "content": "Go on."})
_ASKED: Message = {"role": "user", "content": "Fix it."}
_SAID, _THOUGHT = "zqSaidqz", "zqThoughtqz"

Opening = tuple[tuple[str, str | None], ...]  # each message's role, and its content where that is not left open


@dataclass(frozen=True)
class SampledTurn:
    """The reasoning and the content of a policy's turn.

    reasoning_tokens: how many of the sampled tokens write the reasoning and its tags. kept: whether the template, given
    this as a message, writes just the tokens' text. If not, the record still has what was sampled, and so has the
    server; a client that renders the conversation anew would show it otherwise.
    """

    reasoning: str
    content: str
    reasoning_tokens: int
    kept: bool


@dataclass(frozen=True)
class _Shape:
    """The text of messages whose contents are left open, and what the template does with each content."""

    pieces: list[Piece]
    edits: Sequence[Edit]

    def text(self, contents: Sequence[str]) -> str:
        edited = self.edited(contents)
        return "".join(edited[piece] if isinstance(piece, int) else piece for piece in self.pieces)

    def edited(self, contents: Sequence[str]) -> list[str]:
        return [edit(content) for edit, content in zip(self.edits, contents, strict=True)]


class Content(NamedTuple):
    """A message's content as the template writes it, and its place among the tokens: the fewest that hold it."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """The tokens of messages, and the place of each content among them. A system message that is left out for being
    blank has none."""

    tokens: list[int]
    contents: tuple[Content, ...]

    def __len__(self) -> int:
        return len(self.tokens)


class ChatTemplate:
    """A tokenizer's chat template, used so that nothing is ever rendered or tokenised twice.

    `first_prompt` opens the conversation. After each sampled turn `delta` gives only what new messages add. That this
    is exact is proven for the template in use, once for each sequence of roles, by rendering whole conversations. The
    turns in these are those that a policy of this template can say: what the template itself writes for an assistant's
    message, behind its generation prompt. If it has a place for reasoning, these are turns with reasoning.

    1. *verbatim*: a message's content appears in the text exactly as it is, or trimmed, whatever it holds;
    2. *append-only*: a longer conversation's text starts with the shorter one's, with the sampled turn unchanged, in
       which reasoning and content are read back;
    3. *closed*: a sampled turn ends in one added token, which the policy samples as its stop token;
    4. *constant*: what new messages add depends on them alone, not on the history;
    5. *splittable*: tokenising the pieces gives the ids of tokenising the whole.

    A policy may sample any other text too. Its tokens stay as they are, the same delta follows, and `read` says that
    the template would not have written it. `TemplateError` names the rule that fails. Control tokens come from the
    template only: their text inside a message is encoded as plain text.

    tool_messages: whether conversations have messages of the role `tool`. Where they have none, the template need not
    know it. eos_ids: further tokens at which the engine ends a turn, as `eos_token_ids` reads them from the checkpoint;
    the tokenizer's own are among them without being named. One that was sampled stays, the template's own stop token is
    supplied behind it, and neither is in the turn's text.
    """

    def __init__(
        self,
        tokenizer: Any,
        tool_schemas: Sequence[Mapping[str, Any]],
        *,
        tool_messages: bool = True,
        eos_ids: Iterable[int] = (),
    ) -> None:
        source = getattr(tokenizer, "chat_template", None)
        if not source:
            raise TemplateError("the tokenizer has no chat template: add one to its tokenizer_config.json")
        self._tokenizer = tokenizer
        self._tools = [dict(schema) for schema in tool_schemas]
        self._tool_messages = tool_messages
        self.encoder = Encoder(tokenizer)
        self._openings: dict[Opening, _Shape] = {}
        self._deltas: dict[tuple[str, ...], _Shape] = {}
        self.reasoning = reasoning_of(str(source))
        self._has_place = self._wants_calls = False
        self._look()
        others = [getattr(tokenizer, "eos_token_id", None), self.encoder.ids_of_added.get(END_OF_MESSAGE), *eos_ids]
        known = (token for token in others if token is not None and self.encoder.knows(token))
        self._stops = list(dict.fromkeys([*self._ends.values(), *known]))

    def _look(self) -> None:
        """Find out what the template does with reasoning and with tools' results, and what ends a turn."""
        self._prompt = self._render([_ASKED])
        self._opened = self.reasoning.opened_by(self._prompt.rpartition(_ASKED["content"])[2]) if self.reasoning else ""
        turn = {"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT}
        self._has_place = self.reasoning is not None and _THOUGHT in self._render([_ASKED, turn])
        self._wants_calls = self._tool_messages and self._has_to_have_calls()
        ends = [self._end_before(role) for role in ("user", "tool")[: 1 + self._tool_messages]]
        self._ends = {end: self.encoder.ids_of_added[end] for end in ends}

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end a sampled turn: those with which the template ends one first."""
        return list(self._stops)

    def prove(self) -> None:
        """Prove the rules for the usual conversations, so that a run fails at its start and not in its middle."""
        opening, deltas = SHAPES
        for roles in opening:
            self._opening(tuple((role, None) for role in roles))
        for roles in deltas:
            if self._has_roles(roles):
                self._delta(roles)
        self._prove_plain_text()

    def with_tools(self, tool_schemas: Sequence[Mapping[str, Any]]) -> ChatTemplate:
        """Return the same template with other tools. What was proven of later turns stays proven. Raises
        `TemplateError` if later turns depend on the tools.
        """
        other = copy(self)
        other._tools, other._openings = [dict(schema) for schema in tool_schemas], {}
        other._prompt = other._render([_ASKED])
        later = [message for message in _LATER if self._has_roles([message["role"]])]
        history, turn = self._history(_HISTORIES[0]), self._turn("Looking.", "hm", later)
        ours, theirs = (one._follow(history, one._render(history), turn, later) for one in (self, other))
        if ours != theirs:
            raise TemplateError("rule 'constant' fails: what later turns add depends on the tools")
        return other

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the conversation so far with the first assistant turn opened."""
        return self.render_first(messages).tokens

    def render_first(self, messages: Sequence[Message]) -> Rendered:
        """Render what `first_prompt` gives, with the places of the messages' contents."""
        key = _opening_of(messages)
        contents = [message["content"] for message, (_, known) in zip(messages, key, strict=True) if known is None]
        shape = self._opening(key)
        edited = shape.edited(contents)
        tokens, spans = self.encoder.placed(shape.pieces, edited)
        placed = (Content(text, *span) for text, span in zip(edited, spans, strict=True))
        return Rendered(tokens, tuple(next(placed) if known is None else Content("", 0, 0) for _, known in key))

    def delta(self, messages: Sequence[Message], after: Sequence[int] | None = None) -> list[int]:
        """Return the ids that follow a sampled turn: they add `messages` and open the next assistant turn.

        `after`: the turn's tokens. If these don't end in the stop token that belongs before `messages`, it is supplied
        here: behind a turn that was cut short, and behind another stop token, which stays where it was sampled. None:
        they do.
        """
        return self.render_delta(messages, after).tokens

    def render_delta(self, messages: Sequence[Message], after: Sequence[int] | None = None) -> Rendered:
        """Render what `delta` gives, with the places of the messages' contents."""
        shape = self._delta(tuple(message["role"] for message in messages))
        edited = shape.edited([message["content"] for message in messages])
        ids, spans = self.encoder.placed(shape.pieces, edited)
        given = int(after is None or list(after[-1:]) == ids[:1])  # the stop token is there
        contents = (Content(text, start - given, end - given) for text, (start, end) in zip(edited, spans, strict=True))
        return Rendered(ids[given:], tuple(contents))

    def unsampled(self, pieces: Sequence[Piece], contents: Sequence[str]) -> list[int]:
        """Return the ids of an assistant's turn that the policy did not sample, without reasoning and stop token."""
        return self.encoder.ids([self._before_words(), *pieces], contents)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a sampled turn, without its stop token."""
        end = len(tokens) - 1 if tokens and tokens[-1] in self._stops else len(tokens)
        return self.encoder.decode(tokens[:end])

    def read(self, tokens: Sequence[int]) -> SampledTurn:
        """Read what a sampled turn says."""
        text = self.decode(tokens)
        reasoning, content = self._split(text)
        return SampledTurn(
            reasoning,
            content,
            self._reasoning_tokens(tokens, text) if reasoning else 0,
            self._keeps(text, reasoning, content),
        )

    def _reasoning_tokens(self, tokens: Sequence[int], text: str) -> int:
        """Count the tokens up to the first that ends where the reasoning's closing tag does, or behind it."""
        assert self.reasoning is not None, text
        before, tag, _ = text.partition(self.reasoning.close)
        end, decode = len(before) + len(tag), self.encoder.decode
        return bisect_left(range(len(tokens)), end, key=lambda count: len(decode(tokens[:count])))

    def is_proven(self, opening: Sequence[Message] | None, deltas: Iterable[Sequence[str]]) -> bool:
        """Say whether these messages need no further proof, which takes a tenth of a second. opening: a conversation's
        first messages, None where these are rendered already. deltas: the roles of those after each turn.
        """
        begins = opening is None or _opening_of(opening) in self._openings
        return begins and all(tuple(roles) in self._deltas for roles in deltas)

    def _opening(self, key: Opening) -> _Shape:
        shape = self._openings.get(key)
        if shape is None:
            open_roles = [role for role, content in key if content is None]
            render = partial(self._opening_text, key)
            shape = self._shape(open_roles, render)
            self._check_verbatim(open_roles, shape, render)
            self._check_splittable(shape, next(iter(self._ends)))
            _remember(self._openings, key, shape)
        return shape

    def _opening_text(self, key: Opening, contents: list[str]) -> str:
        left = iter(contents)
        return self._render([{"role": role, "content": next(left) if known is None else known} for role, known in key])

    def _delta(self, roles: tuple[str, ...]) -> _Shape:
        shape = self._deltas.get(roles)
        if shape is None:
            shape = self._prove_delta(roles)
            _remember(self._deltas, roles, shape)
        return shape

    def _prove_delta(self, roles: tuple[str, ...]) -> _Shape:
        shape: _Shape | None = None
        turns = REASONED_TURNS if self._has_place or self._opened else [("", text) for text in ASSISTANT_TEXTS]
        for given in _HISTORIES if self._tool_messages else (*_HISTORIES[:2], _WITHOUT_TOOLS):
            history = self._history(given)
            before = self._render(history)
            for reasoning, content in turns:
                added = partial(self._added_text, history, before, (reasoning, content), roles)
                if self._opened and not reasoning and not added([""] * len(roles)):
                    continue
                if shape is None:
                    shape = self._shape(roles, added)
                elif self._pieces(len(roles), added) != shape.pieces:
                    raise TemplateError(f"rule 'constant' fails: what {roles} add depends on the turns before them")
            assert shape is not None
            self._check_verbatim(roles, shape, partial(self._added_text, history, before, turns[0], roles))
        assert shape is not None
        self._check_splittable(shape)
        return shape

    def _has_roles(self, roles: Sequence[str]) -> bool:
        """Say whether conversations may have messages of these roles."""
        return self._tool_messages or "tool" not in roles

    def _shape(self, roles: Sequence[str], render: Callable[[list[str]], str]) -> _Shape:
        """Find where the contents are in what `render` makes of them, and what it does with them."""
        pieces = self._pieces(len(roles), render)
        edits: list[Edit] = [str] * len(roles)
        plain = _Shape(pieces, tuple(edits))
        for at in range(len(roles)):
            contents = ["x"] * len(roles)
            contents[at] = _EDITED
            text = render(contents)
            for edit in reversed(EDITS):
                contents[at] = edit(_EDITED)
                edits[at] = edit if plain.text(contents) == text else edits[at]
        return _Shape(pieces, tuple(edits))

    def _pieces(self, count: int, render: Callable[[list[str]], str]) -> list[Piece]:
        marks = [f"zqMark{i}qz" for i in range(count)]
        text, pattern = render(marks), "|".join(marks) or r"(?!)"
        found = re.findall(pattern, text)
        if found != marks:
            raise TemplateError(f"rule 'verbatim' fails: of messages {marks} the template renders {found}")
        literals: list[Piece] = [*re.split(pattern, text)]
        return [piece for number, literal in enumerate(literals) for piece in (literal, number)][:-1]

    def _check_verbatim(self, roles: Sequence[str], shape: _Shape, render: Callable[[list[str]], str]) -> None:
        for content in CONTENTS:
            contents = [f"{content}{i}{content}" if content or role == "system" else "" for i, role in enumerate(roles)]
            if render(contents) != shape.text(contents):
                raise TemplateError(
                    f"rule 'verbatim' fails: the template changes the message {contents[0]!r} in {tuple(roles)}"
                )

    def _added_text(
        self, history: Sequence[Message], before: str, turn: tuple[str, str], roles: Sequence[str], contents: list[str]
    ) -> str:
        """Return what new messages add behind a turn, from its stop token on; empty for a turn that has no reasoning
        and that the template does not write behind its own opening of one.
        """
        new = _zip(roles, contents)
        reasoning, content = turn
        said, added = self._follow(history, before, self._turn(content, reasoning, new), new)
        if said is None:
            if reasoning or not self._opened:
                raise TemplateError("rule 'append-only' fails: a later turn changes the text of the turns before it")
            return ""
        if not (self._has_place or self._opened):
            same = said == content
        else:
            same = self._reads_as(said, reasoning, content, is_whole=not (self._wants_calls and roles[:1] == ("tool",)))
        if not same:
            raise TemplateError(
                f"rule 'append-only' fails: a later turn changes the assistant's earlier reply {reasoning + content!r} "
                "(model.chat_template can name a template that keeps what was said)"
            )
        return added

    def _reads_as(self, said: str, reasoning: str, content: str, *, is_whole: bool) -> bool:
        """Say whether a turn reads back as this; unless `is_whole`, tool calls of the template's own follow the
        content.
        """
        thought, words = self._split(said)
        return thought == reasoning and (words == content if is_whole else words.startswith(content))

    def _follow(
        self, history: Sequence[Message], before: str, turn: Message, new: Sequence[Message]
    ) -> tuple[str | None, str]:
        """Return a turn as the template writes it behind `history` (whose text is `before`), and what follows, from its
        stop token on. The turn is None where the text of the history, or the opening of the turn, is another one then.
        """
        longer = self._render([*history, turn, *new])
        if not longer.startswith(before):
            return None, ""
        end = self._end_before(new[0]["role"] if new else "user")
        said, found, added = longer[len(before) :].partition(end)
        if not found:
            raise TemplateError(f"rule 'closed' fails: no {end!r} follows the assistant's reply {said[:40]!r}")
        return said, end + added

    def _end_before(self, role: str) -> str:
        """Find the added token at the end of a turn that a message of this role follows."""
        role = "user" if self._wants_calls else role
        new = [{"role": role, "content": "x"}]
        _, found, rest = self._render([_ASKED, self._turn(_SAID, "hm", new), *new]).partition(_SAID)
        end = self.encoder.added_pattern.match(rest)
        if not found or end is None:
            raise TemplateError(f"rule 'closed' fails: no added token follows the assistant's reply, but {rest[:20]!r}")
        return end.group()

    def _has_to_have_calls(self) -> bool:
        """Say whether the template takes a tool's result only behind a message with calls that are parsed."""
        result = _LATER[:1]
        try:
            self._render([_ASKED, self._turn(_SAID, "hm", result), *result])
            return False
        except TemplateError:
            turn = {**self._turn(_SAID, "hm", result), "tool_calls": self._calls()}
            with suppress(TemplateError):
                self._render([_ASKED, turn, *result])
                return True
            raise

    def _before_words(self) -> str:
        """Return what stands before the content of a turn without reasoning, behind the prompt's end."""
        if self.reasoning is None or not (self._has_place or self._opened):
            return ""
        said, _ = self._follow([_ASKED], self._prompt, self._turn(_SAID, "", [_ASKED]), [_ASKED])
        return f"\n{self.reasoning.close}\n\n" if said is None else said.partition(_SAID)[0]

    def _keeps(self, text: str, reasoning: str, content: str) -> bool:
        if not self._has_place:
            return True
        try:
            said, _ = self._follow([_ASKED], self._prompt, self._turn(content, reasoning, [_ASKED]), [_ASKED])
        except TemplateError:
            return False
        return said == text

    def _split(self, text: str) -> tuple[str, str]:
        return ("", text) if self.reasoning is None else self.reasoning.split(text, opened=bool(self._opened))

    def _turn(self, content: str, reasoning: str, new: Sequence[Message]) -> Message:
        """Make an assistant's message as clients send it back, with these messages behind it."""
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if self._has_place:
            turn["reasoning_content"] = reasoning
        elif self.reasoning and self._opened:
            turn["content"] = f"{self._opened}{reasoning}\n{self.reasoning.close}\n\n{content}"
        if self._wants_calls and new and new[0]["role"] == "tool":
            turn["tool_calls"] = self._calls()
        return turn

    def _calls(self) -> list[Mapping[str, Any]]:
        tool = self._tools[0]["function"]["name"] if self._tools else "view"
        return [{"id": "call_1", "type": "function", "function": {"name": tool, "arguments": {"path": "a.py"}}}]

    def _history(self, given: Sequence[tuple[str, str]]) -> list[Message]:
        messages: list[Message] = []
        for at, (role, content) in enumerate(given):
            rest = _zip([role for role, _ in given[at + 1 :]], [content for _, content in given[at + 1 :]])
            is_turn = role == "assistant"
            messages.append(self._turn(content, "hm", rest) if is_turn else {"role": role, "content": content})
        return messages

    def _check_splittable(self, shape: _Shape, before: str = "") -> None:
        """Require that the pieces' ids are those of the whole text, here behind a stop token."""
        for content in CONTENTS:
            if self.encoder.added_pattern.search(content):
                continue  # here the ids differ on purpose
            contents = [content] * len(shape.edits)
            whole = self.encoder.whole(before + shape.text(contents))
            if whole != self.encoder.ids([before, *shape.pieces], shape.edited(contents)):
                raise TemplateError(
                    f"rule 'splittable' fails: pieces are tokenised unlike the whole around {content!r}"
                )

    def _prove_plain_text(self) -> None:
        added = set(self.encoder.ids_of_added.values())
        for text in self.encoder.ids_of_added:
            if added & set(self.encoder.plain(text)):
                raise TemplateError(
                    f"rule 'splittable' fails: the text {text!r} can't be encoded but as that very token"
                )

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError as JinjaError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=self._tools or None,
                add_generation_prompt=True,
                tokenize=False,
            )
        except JinjaError as error:
            roles = [message["role"] for message in messages]
            raise TemplateError(f"the chat template refuses a conversation of {roles}: {error}") from error
        return text


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep a value, and drop all others if there are many: few lists of roles are usual, but clients may send any."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def _opening_of(messages: Sequence[Message]) -> Opening:
    """List each message's role, and the content of a system message that is blank: templates may leave that out."""
    return tuple(
        (one["role"], one["content"] if one["role"] == "system" and not one["content"].strip() else None)
        for one in messages
    )


def _zip(roles: Sequence[str], contents: Sequence[str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
