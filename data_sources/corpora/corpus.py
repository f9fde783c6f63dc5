"""What is known of a public corpus (where it is, how large, under which licence), and how its files are read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slime_swe.data_sources.records import FILE_KINDS, file_records
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError, unknown
from slime_swe.fields import read
from slime_swe.patches import PatchError, read_patch

DEFAULT_FOLDER = "corpora"
T = TypeVar("T")


def read_record(kind: type[T], record: Any, key: str = "instance_id") -> T:
    """What a loader needs of a record, which has more. Raises `UserError` that names the task by `key`."""
    name = record.get(key) if isinstance(record, dict) else None
    return read(kind, record, f"task {name!r:.80}", partial=True)


def tests_of(names: str | list[str]) -> tuple[str, ...]:
    """Names of tests: a list, or as older data sets have it, the JSON of one. Raises `ValueError` for anything else."""
    return msgspec.json.decode(names, type=tuple[str, ...]) if isinstance(names, str) else tuple(names)


def statement_faults(text: str) -> Iterator[str]:
    """What is wrong with a record's statement."""
    if not text.strip():
        yield f"problem_statement must say what the agent is asked, got {text!r:.80}"


def test_faults(failing: str | list[str], passing: str | list[str]) -> Iterator[str]:
    """What is wrong with a record's lists of tests."""
    for name, names in (("FAIL_TO_PASS", failing), ("PASS_TO_PASS", passing)):
        try:
            found = tests_of(names)
        except ValueError:
            yield f"{name} must be a list of strings, or its JSON, got {names!r:.80}"
        else:
            if not found and name == "FAIL_TO_PASS":
                yield "FAIL_TO_PASS must be at least one test, got []"


def patch_faults(field: str, patch: str) -> Iterator[str]:
    """What is wrong with a record's patch, whose paths are needed."""
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
        """GiB of one image beside the layers that it shares; 0 where it is not published."""
        of_all = self.images or self.count
        return self.images_gib / of_all if of_all else 0.0


@dataclass(frozen=True)
class Corpus:
    """One corpus.

    name: as task sets name it, and of the module here whose `load(split, folder)` reads it. licence: of the corpus
    itself; the code in its tasks keeps that of its projects. counted: where the counts are published. sized: where the
    sizes of its images are. home: web page.
    commit: of the Git repository at `home`, from which the loader was written. brought_by: the command that brings its
    files into the folder, where neither the Hub nor Git has them. needs: what running its tasks takes. in_images: each
    task runs in a container image.
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
        """Dotted path of what loads it."""
        return f"{__package__}.{self.name}.load"

    def split(self, name: str) -> Split:
        """Raises `UserError` with the splits that there are."""
        if name not in self.splits:
            raise UserError(unknown(f"split of {self.name}", name, self.splits))
        return self.splits[name]

    def folder(self, given: Path | None) -> Path:
        """Where its files lie: as given, else `corpora/NAME` in the working directory."""
        return (given if given is not None else Path(DEFAULT_FOLDER, self.name)).expanduser()


def checkout_folder(corpus: Corpus, split: str, given: Path | None, holds: str) -> Path:
    """The folder of a corpus that is a Git repository. Raises `NotFetched` where `holds` is not in it, and `UserError`
    for a split that there isn't."""
    corpus.split(split)
    folder = corpus.folder(given)
    if (folder / holds).exists():
        return folder
    raise NotFetched(corpus, split, given, f"it holds no {holds}")


def load_records(
    corpus: Corpus, make: Callable[[Any, str], Task | None], split: str, folder: Path | None = None
) -> list[Task]:
    """The tasks that `make` makes of the records of `FOLDER/SPLIT.jsonl` (or .json, .parquet); for None it leaves one
    out, as it does, with a warning, where one can't be used. Raises `UserError`; `NotFetched` where there is no such
    file."""
    corpus.split(split)
    path = local_file(corpus.folder(folder), split)
    if path is None:
        raise NotFetched(corpus, split, folder, f"it holds no {split}.jsonl")
    made = file_records(path, lambda record: make(record, split), leave_out=True)
    return [task for task in made if task is not None]


def local_file(folder: Path, split: str) -> Path | None:
    """The file of a split that lies in a corpus's folder."""
    return next((path for kind in FILE_KINDS if (path := folder / f"{split}{kind}").is_file()), None)


def fetch_command(specs: Sequence[str]) -> str:
    """What brings these task sets."""
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
