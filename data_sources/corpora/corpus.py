"""What is known of a public corpus (where it is, how large, under which licence), and how its files are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
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


@dataclass(frozen=True)
class Split:
    """A part of a corpus that has a name.

    count: tasks of the published version; None where no exact figure is published. languages: of their code.
    dataset, dataset_split: on the Hugging Face Hub; empty where the corpus is a Git repository.
    """

    count: int | None
    languages: str
    dataset: str = ""
    dataset_split: str = ""


@dataclass(frozen=True)
class Corpus:
    """One corpus.

    name: as task sets name it, and of the module here whose `load(split, folder)` reads it. licence: of the corpus
    itself; the code in its tasks keeps that of its projects. counted: where the counts are published. home: web page.
    commit: of the Git repository at `home`, from which the loader was written. needs: what running its tasks takes.
    """

    name: str
    title: str
    licence: str
    home: str
    counted: str
    needs: str
    splits: Mapping[str, Split] = field(default_factory=dict)
    commit: str = ""

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
    """The folder of a corpus that is a Git repository. Raises `UserError` where `holds` is not in it, or for a split
    that there isn't."""
    corpus.split(split)
    folder = corpus.folder(given)
    if (folder / holds).exists():
        return folder
    raise UserError(
        f"{corpus.title} is not in {folder.resolve()} ({holds} is missing). On a machine that is online:\n"
        f"  git clone {corpus.home} {folder}\n"
        f"  git -C {folder} checkout {corpus.commit}\n"
        f"A clone that lies elsewhere is named in the task set: {corpus.name}:SPLIT?folder=DIR"
    )


def load_records(
    corpus: Corpus, make: Callable[[Any, str], Task | None], split: str, folder: Path | None = None
) -> list[Task]:
    """The tasks that `make` makes of a split's records; for None it leaves one out. Raises `UserError`."""
    return [task for record in corpus_records(corpus, split, folder) if (task := make(record, split)) is not None]


def corpus_records(corpus: Corpus, split: str, folder: Path | None) -> list[Any]:
    """The records of `FOLDER/SPLIT.jsonl` (or .json, .parquet), else of the Hub's data set.

    Raises `UserError` where neither can be had, with the command that downloads it.
    """
    there = corpus.folder(folder)
    dataset = corpus.split(split)
    for kind in FILE_KINDS:
        if (there / f"{split}{kind}").is_file():
            return [record for _, record in file_records(there / f"{split}{kind}")]
    if find_spec("datasets") is None:
        raise UserError(_how_to_get(corpus, split, there, "the package `datasets` is not installed"))
    return _from_hub(corpus, split, there, dataset.dataset, dataset.dataset_split)


def _from_hub(corpus: Corpus, split: str, folder: Path, dataset: str, dataset_split: str) -> list[Any]:
    import datasets

    try:
        return list(datasets.load_dataset(dataset, split=dataset_split))
    except OSError as error:  # no network, no such data set, or one that must be asked for
        why = f"the Hugging Face Hub did not give it ({error})"
        raise UserError(_how_to_get(corpus, split, folder, why)) from error


def _how_to_get(corpus: Corpus, split: str, folder: Path, why: str) -> str:
    part = corpus.split(split)
    return (
        f"{corpus.name}:{split} is not in {folder.resolve()}, and {why}. Either `pip install 'slime-swe[corpora]'` "
        f"where the Hub can be reached, or on a machine that is online:\n"
        f"  pip install datasets\n"
        f"  python -c \"from datasets import load_dataset as load; load('{part.dataset}', "
        f"split='{part.dataset_split}').to_json('{split}.jsonl')\"\n"
        f"and put the file at {folder.resolve() / f'{split}.jsonl'} ({split}.parquet is taken too). A folder elsewhere "
        f"is named in the task set: {corpus.name}:{split}?folder=DIR"
    )
