"""Serve standard-library modules that were imported before the fork, as if they were being imported now.

A forked interpreter starts with the `sys.modules` of a fresh one. Importing a cached module returns the object that the
supervisor had loaded, and puts into `sys.modules` everything that its own imports would have put there. If the program
puts a folder on `sys.path` that holds a module of the same name as a cached one, every further import is a real one. So
a repository's own `queue.py` or `types.py` is found as usual. What differs from a fresh interpreter: `sys.meta_path`
has one more entry, and `collections.abc` exists as soon as `collections` does.

This file imports nothing that a fresh interpreter has not loaded, since it must see the first import of everything
else.
"""

from __future__ import annotations

import builtins
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

PRELOADED = """
    abc argparse ast atexit bisect collections collections.abc contextlib copy ctypes dataclasses datetime enum
    fcntl functools gc heapq importlib importlib.machinery importlib.util inspect io itertools json math operator os
    os.path pathlib random re resource runpy select shutil signal socket string struct tempfile textwrap time
    traceback types typing
"""


class WarmImports:
    """A meta-path finder. Each module is served once: a second import, or a reload, is a real one."""

    def __init__(self, fresh: frozenset[str]) -> None:
        """Import `PRELOADED`. `fresh` names what was in `sys.modules` when this interpreter had started."""
        self._fresh = fresh
        imports = _record_imports(PRELOADED.split())
        ours = __package__ or ""
        self._cache = {
            name: module for name, module in sys.modules.items() if name not in fresh and not name.startswith(ours)
        }
        self._closures = {name: _closure(name, imports, self._cache) for name in self._cache}
        self._top_names = {name.partition(".")[0] for name in self._cache}
        self._known_path: list[str] = []

    def install(self) -> None:
        """Make `sys.modules` look like a fresh interpreter's, and serve from here what is imported next."""
        for name in [name for name in sys.modules if name not in self._fresh]:
            del sys.modules[name]
        for name in self._cache:
            self._unlink(name)
        self._known_path = list(sys.path)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._cache:
            return None
        if any(self._holds_a_namesake(entry) for entry in sys.path if entry not in self._known_path):
            self._cache.clear()
            return None
        return _spec(name, self._cache[name], self)

    def take(self, name: str) -> ModuleType:
        """Return the loaded module, which leaves the cache; what it imported itself is put in its place."""
        module = self._cache.pop(name)
        fresh = [brought for brought in self._closures[name] if brought in self._cache and brought not in sys.modules]
        sys.modules.update((brought, self._cache.pop(brought)) for brought in fresh)
        for brought in fresh:  # only now: a package may come after what is in it
            self._link(brought)
        return module

    def _link(self, name: str) -> None:
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, sys.modules[name])

    def _unlink(self, name: str) -> None:
        """Forget `package.child` where importing the package alone would not have made it."""
        parent, _, child = name.rpartition(".")
        if parent in self._cache and name not in self._closures[parent]:
            vars(self._cache[parent]).pop(child, None)

    def _holds_a_namesake(self, folder: str) -> bool:
        try:
            entries = posix.listdir(folder or ".")
        except OSError:
            return False
        return any(entry.partition(".")[0] in self._top_names for entry in entries)


class _Loader:
    """Gives a loaded module, and is otherwise the loader that loaded it."""

    def __init__(self, imports: WarmImports, spec: ModuleSpec | None, loader: Loader | None) -> None:
        self._imports = imports
        self._original = spec, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._imports.take(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing, but undo what the import system wrote into the module."""
        module.__spec__, module.__loader__ = self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original[1], name)


def _spec(name: str, module: ModuleType, imports: WarmImports) -> ModuleSpec:
    """Return the module's own spec but for the loader."""
    own = getattr(module, "__spec__", None)
    loader: Any = _Loader(imports, own, getattr(module, "__loader__", None))
    spec = type(sys.__spec__)(name, loader, origin=own and own.origin)  # ModuleSpec: naming it would be an import
    if own is not None:
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        spec.cached = own.cached
    return spec


def _record_imports(names: Sequence[str]) -> dict[str, set[str]]:
    """Import the modules, and return module → the modules that its body imported, loaded before or not."""
    imports: dict[str, set[str]] = {}
    original = builtins.__import__

    def recording(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if globals is not None:
            full = _absolute(name, globals.get("__package__") or "", level)
            targets = imports.setdefault(globals["__name__"], set())
            targets.update((full, *(f"{full}.{item}" for item in fromlist or ())))
        return original(name, globals, locals, fromlist or (), level)

    builtins.__import__ = recording
    try:
        for name in names:
            original(name)
    finally:
        builtins.__import__ = original
    return imports


def _absolute(name: str, package: str, level: int) -> str:
    if level == 0:
        return name
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def _closure(name: str, imports: Mapping[str, set[str]], cache: Mapping[str, ModuleType]) -> list[str]:
    """List every cached module that importing `name` alone brings into `sys.modules`, aliases (`os.path`) included."""
    aliases = [key for key, module in cache.items() if getattr(getattr(module, "__spec__", None), "name", "") != key]
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = None
        targets = {current.rpartition(".")[0], *imports.get(current, ())}
        targets.update(alias for alias in aliases if alias.rpartition(".")[0] == current)
        targets.update(parent for target in list(targets) for parent in _parents(target))
        waiting += [target for target in targets if target in cache]
    return [key for key in found if key != name]


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
