"""An eval script's prologue: where the script expects the repository, and the environment that it enters.

The prologue is what comes before the line that marks the start of the tests' output. An agent gets its environment by
running it: `setup_of` gives shell that does so once in each sandbox, and `eval_prologue.sh` says what is left out. The
folder has to be known before there is a sandbox, since an image is prepared for it. So `folder_of` reads the text.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_READER = Path(__file__).with_suffix(".sh")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?[ \t]*['\"\\]?(?P<end>\w+)['\"]?(?P<rest>[^\n]*\n)(?:.*\n)*?\t*(?P=end)\n")
# The beginning of a command that may change the environment, also by functions that an image's `BASH_ENV` defines.
_ENTERS = re.compile(
    r"(?:^|[;&|({!]|\b(?:if|then|elif|else|do|builtin|command)[ \t])[ \t]*\\?"
    r"(?:(?:source|\.|eval|export|declare|typeset|readonly|unset"
    r"|conda|mamba|micromamba|module|nvm|pyenv|rbenv|sdk|workon)[ \t]|\w+\+?=)",
    re.MULTILINE,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_OPENING = frozenset({"if", "then", "elif", "do", "while", "!", "{", "command", "builtin"})
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})


def prologue_of(script: str) -> str:
    """Return the script down to its tests, without its here-documents: these hold tests, which no agent may see."""
    before = script.partition(START)[0]
    before, found = before[: before.rfind("\n") + 1], 1
    while found:
        before, found = _HERE_DOCUMENT.subn(r"\g<rest>", before)
    return before


def setup_of(script: str) -> str:
    """Write shell that leaves its shell with the exported variables and the functions that the prologue leads to.

    It is empty where the prologue enters nothing.
    """
    prologue = prologue_of(script)
    if not _ENTERS.search(prologue):
        return ""
    lines = _READER.read_text(encoding="utf-8").splitlines(keepends=True)
    reader = "".join(line for line in lines if not line.lstrip().startswith("#"))
    words = ("bash", "--noprofile", "--norc", "-c", reader, "prologue", folder_of(script))
    return (
        f"__entered=$({shlex.join(words)} <<<{shlex.quote(prologue)})\n"
        '[[ $__entered ]] && unset -v $(compgen -e) && eval "$__entered" && cd . && unset -v OLDPWD __entered'
    )


def folder_of(script: str) -> str:
    """Find the repository's folder, absolute: where the prologue first runs git on it or, without, where it ends.

    It is `/testbed`, as in SWE-bench's images, where the prologue changes to no folder. Raises `ValueError` for one
    that changes only to folders that can't be read off: by a variable of the image, or relative to the image's own.
    """
    folder, before, unread = "", "", ""
    pushed: list[str] = []
    outside: list[str] = []  # of each subshell that is open
    variables: dict[str, str] = {}
    for words in _commands(prologue_of(script)):
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            variables[found[1]] = _expanded(found[2], variables)
            words = words[1:]
        match words:
            case ["("]:
                outside.append(folder)
            case [")"] if outside:
                folder = outside.pop()
            case [name, *rest] if name in _DECLARING:
                assigned = (_ASSIGNMENT.fullmatch(word) for word in rest)
                variables |= {found[1]: _expanded(found[2], variables) for found in assigned if found}
            case ["git", "-C", where, *_] if named := _joined(folder, _expanded(where, variables)):
                return named
            case ["git", verb, *_] if folder and verb not in ("config", "clone", "--version"):
                return folder
            case ["popd", *_] if pushed:
                folder = pushed.pop()
            case ["cd", "-"]:
                folder, before = before, folder
            case ["cd" | "pushd" as name, *rest]:
                if name == "pushd":
                    pushed.append(folder)
                where = next((word for word in rest if not word.startswith("-")), "~")
                if named := _joined(folder, _expanded(where, variables)):
                    folder, before = named, folder
                else:
                    unread = unread or where
    if unread and not folder:
        raise ValueError(f"eval_script must change to a folder that its text names, as in cd /app, got cd {unread}")
    return folder or "/testbed"


def _commands(text: str) -> Iterator[list[str]]:
    """Yield each simple command's words, in order, and `(` and `)` alone; without what is after `||` or `else`."""
    otherwise = False
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = [*lexer, ";"]
        except ValueError:  # a quoted text of several lines
            continue
        command: list[str] = []
        skipped = False
        for word in words:
            if set(word) <= set(";&|()"):
                if command and not (skipped or otherwise):
                    yield command
                command, skipped = [], word == "||"
                yield from ([bracket] for bracket in word if bracket in "()")
            elif not command and word.startswith("#"):
                break
            elif not command and word in ("else", "fi"):
                otherwise = word == "else"
            elif command or word not in _OPENING:
                command.append(word)


def _expanded(word: str, variables: dict[str, str]) -> str:
    """Expand the variables of a word that are known; one that is not stays as it is written."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2], found[3] if found[3] is not None else found[0])

    return _VARIABLE.sub(value, word)


def _joined(folder: str, where: str) -> str:
    """Return the folder that `cd` leads to from a folder; empty where that can't be told."""
    if any(character in where for character in "$`~*?") or not (folder or where.startswith("/")):
        return ""
    return posixpath.normpath(posixpath.join(folder, where))
