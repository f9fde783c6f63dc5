"""Run a Python program by forking an interpreter that is already up: ~2 ms instead of ~24.

Used only if the result is the same as starting the program: the command is nothing but `python3 -I -S -B SCRIPT
[ARGUMENTS]` (or `-m MODULE`), and that name on PATH is this very interpreter. Everything else goes to the shell. What
differs: the supervisor's frames lie below the program's, /proc shows the supervisor's command line, and string hashes
are those of PYTHONHASHSEED=0 in every run, where `-I` would draw a seed.

The program ends as the interpreter would end it, but without a full finalisation: `Py_FinalizeEx` visits every object
of every module, and so copies every page that the fork shares, in 5 to 15 ms. What a program can notice of it is done
here instead: threads are waited for, `atexit` functions run, the program's own objects are dropped (so that `__del__`
runs and open files are flushed), standard output is flushed, and the exit code is right.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import ctypes
import gc
import os
import posix
import re
import shutil
import sys
from _weakref import ref
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple, NoReturn, TextIO

from .warm_imports import WarmImports

MAX_SCRIPTS = 256  # kept compiled
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\- ]+")
_FLAGS = ["B", "I", "S"]
_FLAG = re.compile("-[BIS]+")
_ISOLATED_FIELDS = ("isolated", "ignore_environment", "hash_randomization")
_FLUSH_FAILED = 120  # as Py_FinalizeEx has it
_INTERRUPTED = -1  # ends by SIGINT, as an uncaught KeyboardInterrupt does


class PythonCommand(NamedTuple):
    """A command of Python. `program` is a script's path, or a module's name where `is_module`; `argv` is all of it."""

    argv: list[str]
    program: str
    is_module: bool
    arguments: list[str]


def parse(command: str) -> PythonCommand | None:
    """Parse a command: None unless it is a simple one with the flags -I -S -B, each once and no other."""
    if not _PLAIN.fullmatch(command):
        return None
    argv = command.split()
    flag_count = 1
    while flag_count < len(argv) and _FLAG.fullmatch(argv[flag_count]):
        flag_count += 1
    rest = argv[flag_count:]
    flags = sorted("".join(argv[1:flag_count]).replace("-", ""))
    if not rest or argv[0] not in ("python", "python3") or flags != _FLAGS:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return PythonCommand(argv, rest[1], True, rest[2:])
    return None if rest[0].startswith("-") else PythonCommand(argv, rest[0], False, rest[1:])


class Interpreter:
    """The interpreter of this process, made to look like one that has just started, and ready to be forked.

    Work is done here rather than in the fork wherever possible, since each page that a fork writes to is copied.
    """

    def __init__(self, imports: WarmImports, path: list[str]) -> None:
        """Make it look freshly started. `path` is `sys.path` as this interpreter had it when it started."""
        self._executables = {name: shutil.which(name) or "" for name in ("python", "python3")}
        self._itself = os.path.realpath(sys.executable)
        _fill_flags()
        sys.path[:] = path
        sys.path_importer_cache.clear()
        self._library = tuple(path)
        self._compiled: dict[tuple[str, bytes], CodeType] = {}
        imports.install()
        os.environ.update(_=self._executables["python3"], SHLVL="1")  # as a program that bash starts has them

    def precompile(self, path: str, source: bytes) -> None:
        """Keep the code of a script that many sandboxes run; it is used where the file is exactly this."""
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            code = _compile(path, source)
            if len(self._compiled) >= MAX_SCRIPTS:
                self._compiled.clear()
            self._compiled[path, source] = code

    def accepts(self, command: PythonCommand) -> bool:
        """Say whether forking gives what starting the program would give."""
        executable = self._executables[command.argv[0]]
        same = bool(executable) and os.path.realpath(executable) == self._itself
        return same and (command.is_module or os.path.isfile(command.program))

    def run(self, command: PythonCommand) -> NoReturn:
        """Become the program. The caller has set up file descriptors and limits."""
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        sys.executable = self._executables[command.argv[0]]
        sys.orig_argv = command.argv
        sys.argv = ["-m" if command.is_module else command.program, *command.arguments]
        gc.freeze()  # the program's own objects only are worth collecting; its `__main__` is one of them
        sys.modules["__main__"] = _main_module()
        _run_to_the_end(_module if command.is_module else self._script, command.program, self._library)

    def _script(self, path: str) -> None:
        """Run a script as `python SCRIPT` does."""
        path = os.path.abspath(path)
        with open(path, "rb") as file:
            source = file.read()
        namespace = vars(sys.modules["__main__"])
        namespace.update(__file__=path, __loader__=SourceFileLoader("__main__", path))
        try:
            exec(self._compiled.get((path, source)) or _compile(path, source), namespace)
        finally:  # so what was printed comes before the traceback, as CPython's `flush_io` has it
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    _flush(stream)


def _main_module() -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={}, __cached__=None)
    return main


def _fill_flags() -> None:
    """Set `sys.flags` as `-I` does: this process was started without, to take its hash seed from the environment."""
    order = re.findall(r"(\w+)=", repr(sys.flags))
    for name in _ISOLATED_FIELDS:
        place = ctypes.c_ssize_t(order.index(name))
        ctypes.pythonapi.PyStructSequence_SetItem(ctypes.py_object(sys.flags), place, ctypes.py_object(1))


def _compile(path: str, source: bytes) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def _module(name: str) -> None:
    """Run a module as `python -m MODULE` does."""
    runpy: Any = __import__("runpy")  # an import like the program's own, with all that comes with it
    runpy._run_module_as_main(name)


def _run_to_the_end(program: Callable[[str], None], argument: str, library: tuple[str, ...]) -> NoReturn:
    """Run it, report what it raises, end the process. Modules with a file below `library` are not the program's."""
    code = 0
    try:
        program(argument)
    except SystemExit as stop:
        code = _system_exit_code(stop.code) & 0xFF
    except KeyboardInterrupt as error:
        _report(error)
        code = _INTERRUPTED
    except BaseException as error:
        _report(error)
        code = 1
    _finish(code, library)


def _system_exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback from the program's first frame on."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__package__") == __package__:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _finish(code: int, library: tuple[str, ...]) -> NoReturn:
    threading = sys.modules.get("threading")
    if threading is not None:
        vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    flushed = _flush_standard()
    _drop_program(library)
    flushed = flushed and _flush_standard()
    if code == _INTERRUPTED:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        posix.kill(posix.getpid(), _signal.SIGINT)
    os._exit(code if flushed else _FLUSH_FAILED)


def _drop_program(library: tuple[str, ...]) -> None:
    """Drop the program's modules as finalisation does: those that nothing outside refers to while their globals are
    intact, then the others by clearing them."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    names = [name for name, module in sys.modules.items() if _is_own(name, module, library)]
    modules = [ref(sys.modules.pop(name)) for name in names]
    gc.collect()
    survivors = [module for reference in modules if (module := reference()) is not None]
    for module in survivors:
        _clear(module)
    if survivors:
        gc.collect()


def _is_own(name: str, module: object, library: tuple[str, ...]) -> bool:
    file = getattr(module, "__file__", None)
    return name == "__main__" or (isinstance(file, str) and not file.startswith(library))


def _clear(module: ModuleType) -> None:
    """Clear a module in the order of CPython's `_PyModule_Clear`: names with one underscore, then the others."""
    namespace = vars(module)
    for private in (True, False):
        for name in list(namespace):
            if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") == private:
                namespace[name] = None


def _flush_standard() -> bool:
    try:
        _flush(sys.stdout)
    except (OSError, ValueError) as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        with suppress(OSError, ValueError):
            _flush(sys.stderr)
    return True


def _flush(stream: TextIO | None) -> None:
    """Flush a stream that is open. Raises `OSError` or `ValueError`."""
    if stream is not None and not stream.closed:
        stream.flush()
