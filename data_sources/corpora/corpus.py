"""What is known of a public corpus (where it is, how large, under which licence), and how its files are read."""

from __future__ import annotations

import codecs
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError, unknown
from slime_swe.fields import read
from slime_swe.files import read_given
from slime_swe.patches import PatchError, read_patch

DEFAULT_FOLDER = "corpora"
T = TypeVar("T")


def read_record(kind: type[T], record: Any, key: str = "instance_id") -> T:
    """Read what a loader needs of a record, which has more. Raises `UserError` that names the task by `key`."""
    name = record.get(key) if isinstance(record, dict) else None
    return read(kind, record, f"task {name!r:.80}", partial=True)


def tests_of(names: str | list[str]) -> tuple[str, ...]:
    """Read names of tests: a list or, in older data sets, the JSON of one. Raises `ValueError` for anything else."""
    return msgspec.json.decode(names, type=tuple[str, ...]) if isinstance(names, str) else tuple(names)


def statement_faults(text: str) -> Iterator[str]:
    """Yield what is wrong with a record's statement."""
    if not text.strip():
        yield f"problem_statement must say what the agent is asked, got {text!r:.80}"


def test_faults(failing: str | list[str], passing: str | list[str]) -> Iterator[str]:
    """Yield what is wrong with a record's lists of tests."""
    for name, names in (("FAIL_TO_PASS", failing), ("PASS_TO_PASS", passing)):
        try:
            found = tests_of(names)
        except ValueError:
            yield f"{name} must be a list of strings, or its JSON, got {names!r:.80}"
        else:
            if not found and name == "FAIL_TO_PASS":
                yield "FAIL_TO_PASS must be at least one test, got []"


def patch_faults(field: str, patch: str) -> Iterator[str]:
    """Yield what is wrong with a record's patch, whose paths are needed."""
    try:
        read_patch(patch)
    except PatchError as error:
        yield f"{field}: {error}"


GB = 1e9 / 2**30  # in GiB, as sizes of images are published


@dataclass(frozen=True)
class Split:
    """A part of a corpus that has a name.

    count: tasks of the published version; None where no exact figure is published. languages: of their code.
    dataset, dataset_split, configuration: on the Hugging Face Hub; empty where the corpus is not there, and where the
    data set has one configuration. images: container images that its tasks share; None where each has its own.
    images_gib: GiB that all of them take together on one machine; 0 where nobody has published it.
    """

    count: int | None
    languages: str
    dataset: str = ""
    dataset_split: str = ""
    configuration: str = ""
    images: int | None = None
    images_gib: float = 0.0

    @property
    def image_gib(self) -> float:
        """The GiB of one image beside the layers that it shares; 0 where it is not published."""
        of_all = self.images or self.count
        return self.images_gib / of_all if of_all else 0.0


@dataclass(frozen=True)
class Corpus:
    """One corpus.

    name: as task sets name it, and of the module here whose `load(split, folder)` reads it. licence: of the corpus
    itself; the code in its tasks keeps that of its projects. counted: where the counts are published. sized: where the
    sizes of its images are. home: web page. commit: of the Git repository at `home`, from which the loader was written.
    brought_by: the command that brings its files into the folder, where neither the Hub nor Git has them. needs: what
    running its tasks takes. in_images: each task runs in a container image.
    """

    name: str
    title: str
    licence: str
    home: str
    counted: str
    needs: str
    splits: Mapping[str, Split] = field(default_factory=dict)
    commit: str = ""
    brought_by: str = ""
    sized: str = ""
    in_images: bool = True

    @property
    def loader(self) -> str:
        """The dotted path of the function that loads it."""
        return f"{__package__}.{self.name}.load"

    def split(self, name: str) -> Split:
        """Return the split of this name. Raises `UserError` with the splits that there are."""
        if name not in self.splits:
            raise UserError(unknown(f"split of {self.name}", name, self.splits))
        return self.splits[name]

    def folder(self, given: Path | None) -> Path:
        """Return the folder of its files: as given, else `corpora/NAME` in the working directory."""
        return (given if given is not None else Path(DEFAULT_FOLDER, self.name)).expanduser()


def checkout_folder(corpus: Corpus, split: str, given: Path | None, holds: str) -> Path:
    """Return the folder of a corpus that is a Git repository. Raises `NotFetched` where `holds` is not in it, and
    `UserError` for a split that there isn't."""
    corpus.split(split)
    folder = corpus.folder(given)
    if (folder / holds).exists():
        return folder
    raise NotFetched(corpus, split, given, f"it holds no {holds}")


def load_records(
    corpus: Corpus, make: Callable[[Any, str], Task | None], split: str, folder: Path | None = None
) -> list[Task]:
    """Return the tasks that `make` makes of the records of `FOLDER/SPLIT.jsonl` (or .json, .parquet). A record for
    which it returns None is left out, and so is, with a warning, one that can't be used. Raises `UserError`;
    `NotFetched` where there is no such file."""
    corpus.split(split)
    path = local_file(corpus.folder(folder), split)
    if path is None:
        raise NotFetched(corpus, split, folder, f"it holds no {split}.jsonl")
    made = file_records(path, lambda record: make(record, split), leave_out=True)
    return [task for task in made if task is not None]


def local_file(folder: Path, split: str) -> Path | None:
    """Find the file of a split that lies in a corpus's folder."""
    return next((path for kind in FILE_KINDS if (path := folder / f"{split}{kind}").is_file()), None)


# Read the records of a file: JSON Lines, JSON or Parquet.
FILE_KINDS = (".jsonl", ".json", ".parquet")
FAULTS = 10  # records with mistakes that a message names
_log = logging.getLogger(__name__)
Record = tuple[str, Callable[[], Any]]  # its place in words, and what reads it or raises `UserError`
_UTF16 = [f"\ufeff{first}".encode(order) for first in "[{" for order in ("utf-16-le", "utf-16-be")]
_COMPRESSED = {  # how a file of each kind begins
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


def file_records(path: Path, make: Callable[[Any], T], *, lines: bool = False, leave_out: bool = False) -> list[T]:
    """Return what `make` makes of each record of a file. `lines` reads a `.json` as JSON Lines, which some files are.

    Raises `UserError`: with the places of all records that are none, or that `make` raises it for. With `leave_out` a
    warning names the latter instead, as long as others are there and each could be read: half a file is no task set.
    """
    made, faults, whole = list[T](), list[str](), True
    for where, take in _records(path, read_given(path, "the task file"), lines):
        try:
            record = take()
        except UserError as error:
            whole = False
            faults.append(f"{where}: {error}")
            continue
        try:
            made.append(make(record))
        except UserError as error:
            faults.append(f"{where}: {error}")
    if made and faults and leave_out and whole:
        _warn(f"{path}: {len(faults)} of {len(made) + len(faults)} records can't be used: {'; '.join(faults)}")
    elif faults:
        raise UserError(first_few(faults, "records", "\n"))
    return made


@cache
def _warn(message: str) -> None:
    """Log a warning once in a process, which may read a file several times."""
    _log.warning("%s", message)


def first_few(found: Sequence[str], what: str, between: str) -> str:
    """Join the first `FAULTS` of what was found, and say how many more there are."""
    more = [f"and {len(found) - FAULTS} {what} more"] if len(found) > FAULTS else []
    return between.join([*found[:FAULTS], *more])


def _records(path: Path, content: bytes, lines: bool) -> Iterator[Record]:
    if path.suffix == ".parquet":
        return _parquet(path, content)
    content = _utf8(path, content)
    return _json(path, content) if path.suffix == ".json" and not lines else _json_lines(path, content)


def _utf8(path: Path, content: bytes) -> bytes:
    """Return the content without a byte order mark. Raises `UserError` with the remedy where it is of another kind."""
    for mark, name in _COMPRESSED.items():
        if content.startswith(mark):
            raise UserError(f"{path} is compressed ({name}): unpack it first")
    if content[:4] in _UTF16:
        raise UserError(f"{path} is UTF-16: convert it, as by `iconv -f UTF-16 -t UTF-8 {path.name}`")
    return content.removeprefix(codecs.BOM_UTF8)


def _json_lines(path: Path, content: bytes) -> Iterator[Record]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{path}, line {number}", partial(_loads, line)


def _json(path: Path, content: bytes) -> Iterator[Record]:
    try:
        records = _loads(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(records, list):
        raise UserError(f"{path}: must be a list of tasks, got {type(records).__name__}")
    for number, record in enumerate(records, 1):
        yield f"{path}, record {number}", partial(_given, record)


def _loads(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UserError(f"not a JSON object: {error}") from error


def _given(record: Any) -> Any:
    return record


def _parquet(path: Path, content: bytes) -> Iterator[Record]:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow: pip install 'slime-swe[corpora]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist(maps_as_pydicts="lossy")
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", partial(_given, _without_nulls(row))


def _without_nulls(value: Any) -> Any:
    """Drop the nulls of a value. A column of structs has each row's keys in every row, null where a row had none:
    `workspace.files` has the paths of all tasks."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def fetch_command(specs: Sequence[str]) -> str:
    """Write the command that brings these task sets."""
    return f"slime-swe tasks fetch {' '.join(map(shlex.quote, specs))}"


class NotFetched(UserError):
    """A corpus is not on this machine. `command` brings it; `set` is what it names."""

    def __init__(self, corpus: Corpus, split: str, given: Path | None, why: str) -> None:
        name = f"{corpus.name}:{split}"
        self.set = name if given is None or given == corpus.folder(None) else f"{name}?folder={given}"
        self.command = fetch_command([self.set])
        how = f"git clone {corpus.home}" if corpus.commit else f"data set {corpus.split(split).dataset}"
        brings = f"`{self.command}` brings it ({how})"
        if corpus.brought_by:
            brings = f"`{corpus.brought_by}` in that folder brings it"
        super().__init__(
            f"{corpus.title} is not in {corpus.folder(given).resolve()} ({why}). {brings}. A folder elsewhere is named "
            f"in the task set: {name}?folder=DIR"
        )
