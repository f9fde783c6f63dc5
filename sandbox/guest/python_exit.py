"""Run a program in a forked interpreter and end it as the interpreter would, without a full finalisation.

`Py_FinalizeEx` visits every object of every module, and so copies every page that the fork shares: 5 to 15 ms. What a
program can notice of it is done here instead: threads are waited for, `atexit` functions run, the program's own objects
are dropped (so that `__del__` runs and open files are flushed), standard output is flushed, and the exit code is right.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import gc
import os
import posix
import sys
from _weakref import ref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import NoReturn, TextIO

_FLUSH_FAILED = 120  # as Py_FinalizeEx has it
_INTERRUPTED = -1  # ends by SIGINT, as an uncaught KeyboardInterrupt does


def run(program: Callable[[str], None], argument: str, library: tuple[str, ...]) -> NoReturn:
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
    """In the order of CPython's `_PyModule_Clear`: names with one underscore, then the others."""
    namespace = vars(module)
    for private in (True, False):
        for name in list(namespace):
            if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") == private:
                namespace[name] = None


def _flush_standard() -> bool:
    try:
        flush(sys.stdout)
    except (OSError, ValueError) as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        with suppress(OSError, ValueError):
            flush(sys.stderr)
    return True


def flush(stream: TextIO | None) -> None:
    """Raises `OSError` or `ValueError`."""
    if stream is not None and not stream.closed:
        stream.flush()
