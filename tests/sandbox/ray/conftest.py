"""Episodes in sandboxes of other nodes have the tokenizer and the engine of tests/rollout."""

from tests.rollout.conftest import checkpoint, run_with, scripted, tokenizer  # noqa: F401
