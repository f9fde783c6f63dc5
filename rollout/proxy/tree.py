"""`ConversationTree`: finds the recorded turns in a client's history, and the tokens of what is new in it.

Clients send their whole history with every request, in another form than they received it: argument JSON in another
order, null for "", reasoning dropped, system prompts split. A turn is recognised by the ids of its calls, else by its
words, and its sampled tokens are used for it. Only what follows it is rendered and tokenised, as the chat template's
delta. If a client has really rewritten something, the tree branches there, and later turns that the client kept keep
their tokens.

Only a request that was answered changes the tree: `record` does, `place` does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import orjson

from slime_swe.rollout.chat.template import ChatTemplate, Rendered
from slime_swe.rollout.chat.tokenizer import TemplateError
from slime_swe.rollout.client import Generation
from slime_swe.rollout.episode import Call, Node, Session
from slime_swe.rollout.episode import Turn as RecordedTurn
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from slime_swe.rollout.proxy.templates import Templates

MOST_NOTED = 64  # edited and unmatched messages: the first ones of each
_REMEMBERED = 16  # of the latest histories, by which most requests are placed without looking at their words
_THINKING, _END_THINKING = "<think>", "</think>"
_PART = 1 << 16  # characters of a text that are looked at at once

Key = bytes  # a digest: equal for messages, or whole histories, of equal meaning
Exchange = tuple[Message, Sequence[Message]]  # the assistant's message, and those up to its next one
Edited = tuple[Message, Message]  # a turn as it was said, and as the client has it


@dataclass(eq=False)  # prompts and turns are places in a tree
class Prompt:
    """A place at which the policy speaks: `node` ends in the opening of its turn. `after`: the turn that it follows."""

    node: Node
    template: ChatTemplate
    key: Key
    after: Turn | None
    in_tree: bool = False
    turns: list[Turn] = field(default_factory=list)
    copies: dict[Key, Turn] = field(default_factory=dict)  # of turns that were said elsewhere, or by nobody here


@dataclass(eq=False)
class Turn:
    """The assistant's turn at a prompt. `unmatched`: the policy did not say it."""

    said: Message
    node: Node
    key: Key
    at: Prompt
    in_tree: bool = False
    unmatched: bool = False
    prompts: dict[Key, Prompt] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """The start of a request, known at once: it repeats the history up to `prompt`, if any, and goes on with `rest`."""

    prompt: Prompt | None
    rest: Sequence[Message]


@dataclass(frozen=True)
class Placement:
    """The place at which a request's history ends, and those of its turns that the client has changed."""

    request: Request
    prompt: Prompt
    edited: Sequence[Edited] = ()


class ConversationTree:
    """The tree of one episode. What it records goes into the session."""

    def __init__(self, session: Session, templates: Templates) -> None:
        self._session = session
        self._templates = templates
        self._roots: dict[Key, Prompt] = {}
        self._latest: list[tuple[Request, Prompt]] = []
        self._by_call: dict[str, Turn] = {}
        self._by_words: dict[Key, Turn] = {}
        self._recorded = 0
        self.edited: list[Edited] = []  # of turns known by their ids
        # (an assistant's message that the policy did not say, what it said last at that place)
        self.unmatched: list[tuple[Message, Message | None]] = []

    def start(self, request: Request) -> Start:
        """Start at the longest of the latest histories that a request repeats exactly."""
        found: tuple[Request, Prompt] | None = None
        for earlier, prompt in self._latest:
            longer = found is None or len(earlier.messages) > len(found[0].messages)
            if longer and _goes_on(request, earlier) and not self._splits(request.messages, len(earlier.messages)):
                found = earlier, prompt
        return Start(found and found[1], request.messages[len(found[0].messages) if found else 0 :])

    def place(self, request: Request, start: Start | None = None) -> Placement:
        """Find where a request's history ends. Another thread may do this. Raises `ProxyError` for a history that the
        chat template does not accept.
        """
        try:
            return self._place(request, start or self.start(request))
        except TemplateError as error:
            raise ProxyError("invalid_request", f"these messages can't be rendered: {error}") from error

    def is_proven(self, request: Request, start: Start) -> bool:
        """Say whether placing a request needs no further proof of the chat template."""
        if start.prompt is not None:
            template, opening, rest = start.prompt.template, None, start.rest
        else:
            before, rest = _until_assistant(_normal(request.messages))
            known, opening = self._templates.known(request.tools), _plain(before)
            if known is None:
                return False
            template = known
        return template.is_proven(opening, (_roles(block) for _, block in _exchanges(rest)))

    def record(
        self, placed: Placement, said: Message, generation: Generation, *, train: bool = True, began: float = 0.0
    ) -> Turn:
        """Record what the policy said at a prompt. Without `train` its tokens are context. began: seconds since the
        episode began.
        """
        prompt = self._put(placed.prompt)
        self._session.fork(prompt.node)
        noted = _noted(said, len(generation.tokens), began, self._session.seconds)
        add, tokens = self._session.add_context, generation.tokens
        node = self._session.add_sampled(generation, noted) if train else add(tokens, (noted,))
        self._recorded += 1
        key = _digest(prompt.key, b"%d" % self._recorded)
        turn = Turn(said, node, key, prompt, in_tree=True)
        prompt.turns.append(turn)
        self._by_call |= {call.id: turn for call in said.calls}
        self._by_words[words_of(said)] = turn
        others = [known for known in self._latest if known[1] is not prompt]
        self._latest = [(placed.request, prompt), *others][:_REMEMBERED]
        for edited in placed.edited:
            if edited not in self.edited and len(self.edited) < MOST_NOTED:
                self.edited.append(edited)
        return turn

    def _place(self, request: Request, start: Start) -> Placement:
        prompt, rest = start.prompt, start.rest
        edited: list[Edited] = []
        if prompt is None:
            opening, rest = _until_assistant(_normal(request.messages))
            prompt = self._root(request, opening)
        for said, block in self._whole_turns(_exchanges(rest)):
            if not block:
                raise ProxyError("invalid_request", "the last message must not be the assistant's: it speaks next")
            prompt = self._after(self._turn(prompt, said, edited), block, prompt.template)
        return Placement(request, prompt, edited)

    def _put(self, prompt: Prompt) -> Prompt:
        """Put a prompt and what leads to it into the tree and the session. Another request may have put an equal one
        there since this one was placed: then that is the prompt.
        """
        fresh: list[Prompt] = []
        known: Prompt | None = prompt
        while known is not None and not known.in_tree:
            fresh.append(known)
            known = known.after.at if known.after else None
        for prompt in reversed(fresh):
            turn, siblings = prompt.after, self._roots
            if turn is not None:
                if not turn.in_tree:
                    assert known is not None
                    turn = self._put_copy(known, turn)
                siblings = turn.prompts
            known = siblings.setdefault(prompt.key, prompt)
            if known is prompt:
                prompt.after, prompt.in_tree = turn, True
                prompt.node.parent = turn.node if turn else None
                self._session.add(prompt.node)
        assert known is not None
        return known

    def _put_copy(self, prompt: Prompt, copy: Turn) -> Turn:
        known = prompt.copies.setdefault(copy.key, copy)
        if known is copy:
            copy.at, copy.in_tree, copy.node.parent = prompt, True, prompt.node
            self._session.add(copy.node)
            if copy.unmatched and len(self.unmatched) < MOST_NOTED:
                self.unmatched.append((copy.said, prompt.turns[-1].said if prompt.turns else None))
        return known

    def _whole_turns(self, exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
        """Put split turns together again, with what follows them: some clients split a turn of parallel calls, so that
        each call has its results behind it.
        """
        whole: Exchange | None = None
        for said, block in exchanges:
            if whole is not None and self._is_rest(said, whole[0]):
                whole = _joined([whole[0], said]), [*whole[1], *block]
                continue
            if whole is not None:
                yield whole
            whole = said, block
        if whole is not None:
            yield whole

    def _is_rest(self, said: Message, before: Message) -> bool:
        """Say whether a message has further calls of the turn that the assistant's message before it is of."""
        turn = self._by_id(said)
        seen = {call.id for call in before.calls}
        return turn is not None and turn is self._by_id(before) and not any(call.id in seen for call in said.calls)

    def _by_id(self, said: Message) -> Turn | None:
        """Find the recorded turn with one of a message's calls."""
        return next((self._by_call[call.id] for call in said.calls if call.id in self._by_call), None)

    def _splits(self, messages: Sequence[Message], at: int) -> bool:
        """Say whether the messages before a place and those behind it are of one turn."""
        before = next((one for one in reversed(messages[:at]) if one.role == "assistant"), None)
        return before is not None and at < len(messages) and self._is_rest(messages[at], before)

    def _root(self, request: Request, opening: Sequence[Message]) -> Prompt:
        if not opening:
            raise ProxyError("invalid_request", "messages must begin with one of a user or a system")
        key = _digest(orjson.dumps(request.tools), *map(words_of, opening))
        known = self._roots.get(key)
        if known is not None:
            return known
        template, now = self._templates.of(request.tools), self._session.seconds
        rendered = template.render_first(_plain(opening))
        turns = _placed(opening, rendered, now, now)
        return Prompt(Node(rendered.tokens, None, None, turns=turns, tools=request.tools), template, key, None)

    def _turn(self, prompt: Prompt, said: Message, edited: list[Edited]) -> Turn:
        turn = self._attribute(prompt, said, edited)
        if turn is not None and turn.at is prompt:
            return turn
        key = _digest(prompt.key, words_of(said) if turn is None else turn.key)
        known = prompt.copies.get(key)
        if known is not None:
            return known
        if turn is not None:  # its tokens are context here
            return Turn(turn.said, Node(turn.node.tokens, None, prompt.node, turns=turn.node.turns), key, prompt)
        tokens, now = self._templates.turn(said), self._session.seconds
        node = Node(tokens, None, prompt.node, turns=(_noted(said, len(tokens), now, now),))
        return Turn(said, node, key, prompt, unmatched=True)

    def _attribute(self, prompt: Prompt, said: Message, edited: list[Edited]) -> Turn | None:
        """Find the recorded turn that a message repeats: by its calls' ids, else by its words, first at this prompt."""
        turn = self._by_id(said)
        if turn is not None:
            place = {call.id: at for at, call in enumerate(turn.said.calls)}
            said = replace(said, calls=tuple(sorted(said.calls, key=lambda call: place.get(call.id, len(place)))))
            if words_of(said) != words_of(turn.said):
                edited.append((turn.said, said))
            return turn
        words = words_of(said)
        here = (turn for turn in reversed(prompt.turns) if words_of(turn.said) == words)
        return next(here, None) or self._by_words.get(words)

    def _after(self, turn: Turn, block: Sequence[Message], template: ChatTemplate) -> Prompt:
        block = _in_order_of_calls(block, turn.said.calls)
        key = _digest(turn.key, *map(words_of, block))
        known = turn.prompts.get(key)
        if known is not None:
            return known
        rendered = template.render_delta(_plain(block), turn.node.tokens)
        turns = _placed(block, rendered, turn.node.turns[-1].ended, self._session.seconds)
        return Prompt(Node(rendered.tokens, None, turn.node, turns=turns), template, key, turn)


def _placed(messages: Sequence[Message], rendered: Rendered, began: float, ended: float) -> list[RecordedTurn]:
    """Convert messages that a client has added to turns of the record. Only a tool's result was long in the making."""
    return [
        RecordedTurn(one.role, *content, began if one.role == "tool" else ended, ended, call_id=one.call_id)
        for one, content in zip(messages, rendered.contents, strict=True)
    ]


def _noted(said: Message, length: int, began: float, ended: float) -> RecordedTurn:
    calls = [Call(call.id, call.name, call.arguments) for call in said.calls]
    return RecordedTurn("assistant", said.text, 0, length, began, ended, said.reasoning, calls)


def _plain(messages: Sequence[Message]) -> list[Mapping[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]


def _roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


def words_of(message: Message) -> Key:
    """Return a digest of the parts of a message by which two are compared: not white space, reasoning, ids, or the
    layout of argument JSON.
    """
    text = _without_thinking(message.text) if message.role == "assistant" else message.text
    parts = [part for call in message.calls for part in (call.name.encode("utf-8", "surrogatepass"), _values(call))]
    return _digest(message.role.encode(), _words(text), *map(_digest, parts))


def _digest(*parts: bytes) -> Key:
    """Digest the parts. Those of variable length must, but for one, be digests themselves."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _words(text: str) -> bytes:
    """Return a digest of a text's words. A long text is read in parts: all its words at once would take much memory."""
    digest = blake2b(digest_size=16)
    begun = apart = False  # whether a word came before, and white space after it
    for start in range(0, len(text), _PART):
        part = text[start : start + _PART]
        words = " ".join(part.split())
        if words:
            digest.update(b" " if begun and (apart or part[0].isspace()) else b"")
            digest.update(words.encode("utf-8", "surrogatepass"))
            begun = True
        apart = part[-1].isspace()
    return digest.digest()


def _without_thinking(text: str) -> str:
    kept, at = [], 0
    while (start := text.find(_THINKING, at)) >= 0 and (end := text.find(_END_THINKING, start)) >= 0:
        kept.append(text[at:start])
        at = end + len(_END_THINKING)
    return "".join([*kept, text[at:]])


def _values(call: MessageCall) -> bytes:
    try:
        return orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return call.arguments.strip().encode("utf-8", "surrogatepass")


def _goes_on(request: Request, earlier: Request) -> bool:
    """Say whether a history is an earlier one, to the letter, or that with a reply after it."""
    messages, count = request.messages, len(earlier.messages)
    fits = len(messages) == count or (len(messages) > count and messages[count].role == "assistant")
    return fits and messages[:count] == earlier.messages and request.tools == earlier.tools


def _normal(messages: Sequence[Message]) -> list[Message]:
    """Keep one system message, at the head: further ones there are joined to it, and later ones become a user's."""
    head = list(itertools.takewhile(lambda message: message.role == "system", messages))
    rest = [replace(one, role="user") if one.role == "system" else one for one in messages[len(head) :]]
    return [Message("system", "\n\n".join(one.text for one in head)), *rest] if head else rest


def _until_assistant(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    count = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return messages[:count], messages[count:]


def _exchanges(messages: Sequence[Message]) -> Iterator[Exchange]:
    """Yield each turn of the assistant, messages of one turn joined, and what follows it."""
    rest: Sequence[Message] = _normal(messages) if messages else ()
    while rest:
        turn = list(itertools.takewhile(lambda message: message.role == "assistant", rest))
        block, rest = _until_assistant(rest[len(turn) :])
        yield _joined(turn), block


def _joined(turn: Sequence[Message]) -> Message:
    if len(turn) == 1:
        return turn[0]
    calls = tuple(call for message in turn for call in message.calls)
    return Message("assistant", "\n".join(filter(None, (message.text for message in turn))), calls)


def _in_order_of_calls(block: Sequence[Message], calls: Sequence[MessageCall]) -> list[Message]:
    """Sort results into the order of the calls that they answer; the rest of the block stays behind them."""
    place: Mapping[str, int] = {call.id: at for at, call in enumerate(calls)}
    results = [message for message in block if message.role == "tool" and message.call_id in place]
    others = [message for message in block if message.role != "tool" or message.call_id not in place]
    return [*sorted(results, key=lambda message: place[message.call_id]), *others]
