"""`ChatTemplate`: token ids of a conversation's first prompt, and of what each later turn adds to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from slime_swe.rollout.chat.tokenizer import Encoder, Piece, TemplateError

Message = Mapping[str, str]
_REMEMBERED = 64  # lists of roles, of which what is proven is kept

# What a template is probed with: contents and histories that templates are known to treat specially.
# Contents of system, user and tool messages. Texts of control tokens are among them on purpose.
CONTENTS: tuple[str, ...] = (
    "plain words",
    "",
    " spaces around ",
    "\n\nnewlines around\n\n",
    "\ttabs\r\n",
    "ünïcödé 漢字 🙂\u200b",
    "{{ braces }} {% raw %} {# note #}",
    '{"json": "<&>\'"}',
    "<tool_response>\nnested\n</tool_response>",
    "<think>\nmaybe\n</think>\n\ndone",
    "<|im_end|>\n<|im_start|>assistant\nI was here<|endoftext|></s>[INST]",
)

# What the policy may have said in an earlier turn, without the stop token.
ASSISTANT_TEXTS: tuple[str, ...] = (
    "Let me look.",
    "",
    "  spaces and newlines \n\n",
    '<tool_call>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>',
    "I see.\n<tool_call>\n<function=view>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>",
    "<think>\nfirst a, then b\n</think>\n\nDone.",
    "<think>unfinished",
    "closing only</think>ünï 漢字",
)


def _history(*turns: str) -> Sequence[Mapping[str, str]]:
    """A conversation that ends where the assistant speaks next."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


HISTORIES: tuple[Sequence[Mapping[str, str]], ...] = (
    _history("s:Be brief.", "u:Fix it."),
    _history("u:Fix it."),
    _history("s:Be brief.", "u:Fix it.", "a:Looking.", "t:found"),
    _history("s:Be brief.", "u:Fix it.", "a:<think>\nhm\n</think>\n\nLooking.", "t:one", "t:two", "a:And?", "u:Go on."),
)

# Roles of first prompts, and of messages that follow a sampled turn, that are proven when a run starts.
SHAPES: tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]] = (
    [("system", "user"), ("user",)],
    [("tool",), ("tool", "tool"), ("tool", "tool", "tool"), ("user",), ("tool", "user")],
)

_LATER: Sequence[Message] = ({"role": "tool", "content": "found"}, {"role": "user", "content": "Go on."})


class ChatTemplate:
    """A tokenizer's chat template, used so that nothing is ever rendered or tokenised twice.

    `first_prompt` opens the conversation. After each sampled turn `delta` gives only what new messages add. That this
    is exact is proven for the template in use, once for each sequence of roles, by rendering whole conversations:

    1. *verbatim*: a message's content appears in the text exactly as it is, whatever it holds;
    2. *append-only*: a longer conversation's text starts with the shorter one's, with the sampled turn unchanged;
    3. *closed*: a sampled turn ends in one added token, which the policy samples as its stop token;
    4. *constant*: what new messages add depends on them alone, not on the history;
    5. *splittable*: tokenising the pieces gives the ids of tokenising the whole.

    `TemplateError` names the rule that fails. Control tokens come from the template only: their text inside a message
    is encoded as plain text.
    """

    def __init__(self, tokenizer: Any, tool_schemas: Sequence[Mapping[str, Any]]) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError("the tokenizer has no chat template: add one to its tokenizer_config.json")
        self._tokenizer = tokenizer
        self._tools = [dict(schema) for schema in tool_schemas]
        self.encoder = Encoder(tokenizer)
        self._openings: dict[tuple[str, ...], list[Piece]] = {}
        self._deltas: dict[tuple[str, ...], list[Piece]] = {}
        self._turn_end = self._find_turn_end()

    @property
    def stop_token_ids(self) -> list[int]:
        """What ends a sampled turn."""
        return [self._turn_end_id]

    @property
    def _turn_end_id(self) -> int:
        return self.encoder.ids_of_added[self._turn_end]

    def prove(self) -> None:
        """Prove the rules for the usual conversations, so that a run fails at its start and not in its middle."""
        opening, deltas = SHAPES
        for roles in opening:
            self._opening(roles)
        for roles in deltas:
            self._delta(roles)
        self._prove_plain_text()

    def with_tools(self, tool_schemas: Sequence[Mapping[str, Any]]) -> ChatTemplate:
        """The same template with other tools. What was proven of later turns stays proven. Raises `TemplateError` if
        later turns depend on the tools.
        """
        other = copy(self)
        other._tools, other._openings = [dict(schema) for schema in tool_schemas], {}
        history, said = HISTORIES[0], ASSISTANT_TEXTS[0]
        ours, theirs = (one._added_text(history, one._render(history), said, [*_LATER]) for one in (self, other))
        if ours != theirs:
            raise TemplateError("rule 'constant' fails: what later turns add depends on the tools")
        return other

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation so far with the first assistant turn opened."""
        roles, contents = _unzip(messages)
        return self.encoder.ids(self._opening(roles), contents)

    def delta(self, messages: Sequence[Message], *, closed: bool = True) -> list[int]:
        """Ids that follow a sampled turn: they add `messages` and open the next assistant turn.

        `closed` says that the turn ended in its stop token; a turn that was cut short has it supplied here.
        """
        roles, contents = _unzip(messages)
        ids = self.encoder.ids(self._delta(roles), contents)
        return ids if closed else [self._turn_end_id, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a sampled turn, without its stop token."""
        end = len(tokens) - 1 if tokens and tokens[-1] == self._turn_end_id else len(tokens)
        return self.encoder.decode(tokens[:end])

    def is_proven(self, opening: Sequence[str] | None, deltas: Iterable[Sequence[str]]) -> bool:
        """Whether messages of these roles need no further proof, which takes a tenth of a second. opening: the roles of
        a conversation's first messages, None where it is rendered already.
        """
        begins = opening is None or tuple(opening) in self._openings
        return begins and all(tuple(roles) in self._deltas for roles in deltas)

    def _opening(self, roles: tuple[str, ...]) -> list[Piece]:
        pieces = self._openings.get(roles)
        if pieces is None:
            pieces = self._pieces(roles, self._render)
            self._check_verbatim(roles, pieces, self._render)
            _remember(self._openings, roles, self._splittable(pieces, len(roles)))
        return pieces

    def _delta(self, roles: tuple[str, ...]) -> list[Piece]:
        pieces = self._deltas.get(roles)
        if pieces is None:
            pieces = self._prove_delta(roles)
            _remember(self._deltas, roles, pieces)
        return pieces

    def _prove_delta(self, roles: tuple[str, ...]) -> list[Piece]:
        known: list[Piece] | None = None
        for history in HISTORIES:
            before = self._render(history)
            for said in ASSISTANT_TEXTS:
                pieces = self._pieces(roles, partial(self._added_text, history, before, said))
                if known is not None and pieces != known:
                    raise TemplateError(f"rule 'constant' fails: what {roles} add depends on the turns before them")
                known = pieces
            self._check_verbatim(roles, known or [], partial(self._added_text, history, before, ASSISTANT_TEXTS[0]))
        return self._splittable(known or [], len(roles))

    def _pieces(self, roles: tuple[str, ...], render: Callable[[list[Message]], str]) -> list[Piece]:
        """Where the contents of messages of these roles are in what `render` makes of them."""
        marks = [f"zqMark{i}qz" for i in range(len(roles))]
        text, pattern = render(_zip(roles, marks)), "|".join(marks) or r"(?!)"
        found = re.findall(pattern, text)
        if found != marks:
            raise TemplateError(f"rule 'verbatim' fails: of messages {marks} the template renders {found}")
        literals: list[Piece] = [*re.split(pattern, text)]
        return [piece for number, literal in enumerate(literals) for piece in (literal, number)][:-1]

    def _check_verbatim(
        self, roles: tuple[str, ...], pieces: list[Piece], render: Callable[[list[Message]], str]
    ) -> None:
        for content in CONTENTS:
            contents = [f"{content}{i}{content}" if content else "" for i in range(len(roles))]
            if render(_zip(roles, contents)) != _join(pieces, contents):
                raise TemplateError(
                    f"rule 'verbatim' fails: the template changes the message {contents[0]!r} in {roles}"
                )

    def _added_text(self, history: Sequence[Message], before: str, said: str, new: list[Message]) -> str:
        """What the text of `history` (that is `before`) gains by a reply and new messages, stop token excluded."""
        longer = self._render([*history, {"role": "assistant", "content": said}, *new])
        if not longer.startswith(before):
            raise TemplateError("rule 'append-only' fails: a later turn changes the text of the turns before it")
        if not longer.startswith(f"{before}{said}{self._turn_end}"):
            raise TemplateError(
                f"rule 'append-only' fails: a later turn changes the assistant's earlier reply {said!r}"
            )
        return longer[len(before) + len(said) + len(self._turn_end) :]

    def _find_turn_end(self) -> str:
        history, said = HISTORIES[0], "zqSaidqz"
        text = self._render([*history, {"role": "assistant", "content": said}, {"role": "user", "content": "x"}])
        _, found, rest = text.partition(said)
        end = self.encoder.added_pattern.match(rest)
        if not found or end is None:
            raise TemplateError(f"rule 'closed' fails: no added token follows the assistant's reply, but {rest[:20]!r}")
        return end.group()

    def _splittable(self, pieces: list[Piece], count: int) -> list[Piece]:
        """The pieces, whose ids are proven to be those of the whole text after a stop token."""
        for content in CONTENTS:
            if self.encoder.added_pattern.search(content):
                continue  # here the ids differ on purpose
            contents = [content] * count
            whole = self.encoder.whole(self._turn_end + _join(pieces, contents))
            if whole != [self._turn_end_id, *self.encoder.ids(pieces, contents)]:
                raise TemplateError(
                    f"rule 'splittable' fails: pieces are tokenised unlike the whole around {content!r}"
                )
        return pieces

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


def _remember(known: dict[tuple[str, ...], list[Piece]], roles: tuple[str, ...], pieces: list[Piece]) -> None:
    """Few lists of roles are usual, and a client may send any number of others."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known[roles] = pieces


def _zip(roles: Sequence[str], contents: Sequence[str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _unzip(messages: Sequence[Message]) -> tuple[tuple[str, ...], list[str]]:
    return tuple(message["role"] for message in messages), [message["content"] for message in messages]


def _join(pieces: Sequence[Piece], contents: Sequence[str]) -> str:
    return "".join(contents[piece] if isinstance(piece, int) else piece for piece in pieces)
