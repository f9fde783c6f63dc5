"""`ConversationTree`: finds the recorded turns in a client's history, and the tokens of what is new in it.

Clients send their whole history with every request, in another form than they received it: argument JSON in another
order, null for "", reasoning dropped, system prompts split. A turn is recognised by the ids of its calls, else by its
words, and its sampled tokens are used for it. Only what follows it is rendered and tokenised, as the chat template's
delta. If a client has really rewritten something, the tree branches there, and later turns that the client kept keep
their tokens.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tokenizer import TemplateError
from slime_swe.rollout.client import Generation
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.session import Node, Session

_REMEMBERED = 16  # of the latest histories, by which most requests are placed without looking at their words
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)

Words = tuple[Any, ...]  # what is compared of messages
Exchange = tuple[Message, Sequence[Message]]  # the assistant's message, and those up to its next one


@dataclass(eq=False)  # prompts and turns are places in a tree
class Prompt:
    """A place at which the policy speaks: `node` ends in the opening of its turn."""

    node: Node
    template: ChatTemplate
    turns: list[Turn] = field(default_factory=list)
    copies: dict[Any, Turn] = field(default_factory=dict)  # of turns that were said elsewhere, or by nobody here


@dataclass(eq=False)
class Turn:
    """What was said at a prompt. `closed`: whether its tokens end in the stop token."""

    said: Message
    node: Node
    closed: bool
    prompts: dict[Words, Prompt] = field(default_factory=dict)


class ConversationTree:
    """The tree of one episode. What it places and records goes into the session."""

    def __init__(self, session: Session, templates: Templates) -> None:
        self._session = session
        self._templates = templates
        self._roots: dict[Words, Prompt] = {}
        self._latest: list[tuple[Request, Prompt]] = []
        self._by_call: dict[str, Turn] = {}
        self._by_words: dict[Words, Turn] = {}
        self.edited: list[tuple[Message, Message]] = []  # (as said, as the client has it), of turns known by their ids
        # (an assistant's message that the policy did not say, what it said last at that place)
        self.unmatched: list[tuple[Message, Message | None]] = []

    @property
    def calls(self) -> Set[str]:
        """The ids of all calls that the policy has made."""
        return self._by_call.keys()

    def place(self, request: Request) -> Prompt:
        """Where a request's history ends. Raises `ProxyError` for a history that the chat template does not accept."""
        try:
            prompt = self._place(request)
        except TemplateError as error:
            raise ProxyError("invalid_request", f"these messages can't be rendered: {error}") from error
        self._latest = [(request, prompt), *(known for known in self._latest if known[1] is not prompt)][:_REMEMBERED]
        return prompt

    def record(self, prompt: Prompt, said: Message, generation: Generation, *, train: bool = True) -> Turn:
        """Record what the policy said at a prompt. Without `train` its tokens are context."""
        self._session.fork(prompt.node)
        node = self._session.add_sampled(generation) if train else self._session.add_context(generation.tokens)
        turn = Turn(said, node, generation.tokens[-1] in prompt.template.stop_token_ids)
        prompt.turns.append(turn)
        self._by_call |= {call.id: turn for call in said.calls}
        self._by_words[words_of(said)] = turn
        return turn

    def _place(self, request: Request) -> Prompt:
        known = self._known(request)
        if known is not None:
            prompt, rest = known
        else:
            opening, rest = _until_assistant(_normal(request.messages))
            prompt = self._root(request, opening)
        for said, block in self._whole_turns(_exchanges(rest)):
            if not block:
                raise ProxyError("invalid_request", "the last message must not be the assistant's: it speaks next")
            prompt = self._after(self._turn(prompt, said), block, prompt.template)
        return prompt

    def _whole_turns(self, exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
        """Some clients split a turn of parallel calls: each call of it has its results behind it. Such a turn is put
        together again, with what follows it.
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
        """Whether a message has further calls of the turn that the assistant's message before it is of."""
        turn = self._by_id(said)
        seen = {call.id for call in before.calls}
        return turn is not None and turn is self._by_id(before) and not any(call.id in seen for call in said.calls)

    def _by_id(self, said: Message) -> Turn | None:
        """The recorded turn with one of a message's calls."""
        return next((self._by_call[call.id] for call in said.calls if call.id in self._by_call), None)

    def _known(self, request: Request) -> tuple[Prompt, Sequence[Message]] | None:
        """The longest of the latest histories that this one starts with exactly, and what follows it."""
        found: tuple[Request, Prompt] | None = None
        for earlier, prompt in self._latest:
            longer = found is None or len(earlier.messages) > len(found[0].messages)
            if longer and _goes_on(request, earlier) and not self._splits(request.messages, len(earlier.messages)):
                found = earlier, prompt
        return None if found is None else (found[1], request.messages[len(found[0].messages) :])

    def _splits(self, messages: Sequence[Message], at: int) -> bool:
        """Whether the messages before a place and those behind it are of one turn."""
        before = next((one for one in reversed(messages[:at]) if one.role == "assistant"), None)
        return before is not None and at < len(messages) and self._is_rest(messages[at], before)

    def _root(self, request: Request, opening: Sequence[Message]) -> Prompt:
        if not opening:
            raise ProxyError("invalid_request", "messages must begin with one of a user or a system")
        key = (orjson.dumps(request.tools), *map(words_of, opening))
        if key not in self._roots:
            template = self._templates.of(request.tools)
            self._session.fork(None)
            node = self._session.add_context(template.first_prompt(_plain(opening)))
            self._roots[key] = Prompt(node, template)
        return self._roots[key]

    def _turn(self, prompt: Prompt, said: Message) -> Turn:
        turn = self._attribute(prompt, said)
        if turn is not None and turn.node.parent is prompt.node:
            return turn
        key = words_of(said) if turn is None else turn
        if key in prompt.copies:
            return prompt.copies[key]
        self._session.fork(prompt.node)
        if turn is not None:  # its tokens are context here
            copied = Turn(turn.said, self._session.add_context(turn.node.tokens), turn.closed)
        else:
            self.unmatched.append((said, prompt.turns[-1].said if prompt.turns else None))
            copied = Turn(said, self._session.add_context(self._templates.turn(said)), closed=True)
        prompt.copies[key] = copied
        return copied

    def _attribute(self, prompt: Prompt, said: Message) -> Turn | None:
        """The recorded turn that a message repeats: by its calls' ids, else by its words, first at this prompt."""
        turn = self._by_id(said)
        if turn is not None:
            place = {call.id: at for at, call in enumerate(turn.said.calls)}
            said = replace(said, calls=tuple(sorted(said.calls, key=lambda call: place.get(call.id, len(place)))))
            if words_of(said) != words_of(turn.said) and (turn.said, said) not in self.edited:
                self.edited.append((turn.said, said))
            return turn
        words = words_of(said)
        here = (turn for turn in reversed(prompt.turns) if words_of(turn.said) == words)
        return next(here, None) or self._by_words.get(words)

    def _after(self, turn: Turn, block: Sequence[Message], template: ChatTemplate) -> Prompt:
        block = _in_order_of_calls(block, turn.said.calls)
        key = tuple(map(words_of, block))
        if key not in turn.prompts:
            tokens = template.delta(_plain(block), closed=turn.closed)
            self._session.fork(turn.node)
            turn.prompts[key] = Prompt(self._session.add_context(tokens), template)
        return turn.prompts[key]


def _plain(messages: Sequence[Message]) -> list[Mapping[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]


def words_of(message: Message) -> Words:
    """The parts of a message by which two are compared: not white space, reasoning, ids, or the layout of argument
    JSON.
    """
    text = message.text
    if message.role == "assistant":
        text = _THINKING.sub("", text)
    return message.role, " ".join(text.split()), tuple(map(_words_of_call, message.calls))


def _words_of_call(call: MessageCall) -> tuple[str, bytes]:
    try:
        return call.name, orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return call.name, call.arguments.strip().encode("utf-8", "surrogatepass")


def _goes_on(request: Request, earlier: Request) -> bool:
    """Whether a history is an earlier one, to the letter, or that with a reply after it."""
    messages, count = request.messages, len(earlier.messages)
    fits = len(messages) == count or (len(messages) > count and messages[count].role == "assistant")
    return fits and messages[:count] == earlier.messages and request.tools == earlier.tools


def _normal(messages: Sequence[Message]) -> list[Message]:
    """One system message, at the head: further ones there are joined to it, and later ones are a user's."""
    head = list(itertools.takewhile(lambda message: message.role == "system", messages))
    rest = [replace(one, role="user") if one.role == "system" else one for one in messages[len(head) :]]
    return [Message("system", "\n\n".join(one.text for one in head)), *rest] if head else rest


def _until_assistant(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    count = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return messages[:count], messages[count:]


def _exchanges(messages: Sequence[Message]) -> Iterator[Exchange]:
    """Each turn of the assistant, messages of one turn joined, and what follows it."""
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
    """Results in the order of the calls that they answer; the rest of the block stays behind them."""
    place: Mapping[str, int] = {call.id: at for at, call in enumerate(calls)}
    results = [message for message in block if message.role == "tool" and message.call_id in place]
    others = [message for message in block if message.role != "tool" or message.call_id not in place]
    return [*sorted(results, key=lambda message: place[message.call_id]), *others]
