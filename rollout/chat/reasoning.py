"""Reasoning formats: the tags between which a policy thinks before it speaks. A new one is a line here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    """A turn is `open`, the reasoning, `close`, and then what is said. Some chat templates open the reasoning
    themselves, at the end of the prompt; then the policy's own turn begins inside it.
    """

    open: str
    close: str

    def opened_by(self, prompt_end: str) -> str:
        """With what the prompt that ends so opens the turn's reasoning; empty where it does not."""
        at = prompt_end.rfind(self.open)
        return prompt_end[at:] if at > prompt_end.rfind(self.close) else ""

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """A turn's reasoning and what it says, without the white space that the format puts around each.

        Reasoning that is never closed goes on to the turn's end. A turn that does not begin with reasoning has none.
        """
        begun = text.lstrip()
        if begun.startswith(self.open):
            text = begun[len(self.open) :]
        elif not opened:
            return "", text
        reasoning, _, said = text.partition(self.close)
        return reasoning.strip(), said.lstrip()


THINK = ReasoningFormat("<think>", "</think>")  # Qwen3, GLM-4.5, MiniMax-M2, Kimi-K2, DeepSeek-R1
REASONING_FORMATS = (THINK,)


def reasoning_of(chat_template: str) -> ReasoningFormat | None:
    """The format whose tags a chat template's source names."""
    return next((one for one in REASONING_FORMATS if one.close in chat_template), None)
