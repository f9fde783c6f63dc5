"""What is known of a public corpus: where it is, how large it is, under which licence it may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from data_sources.arguments import unknown
from data_sources.spec import RegistryError

DEFAULT_FOLDER = "corpora"


class CorpusError(RegistryError):
    """A corpus is not on this machine; the message says what to download and where to put it."""


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

    name: as task sets name it. loader: dotted path of `load(split, folder)`. licence: of the corpus itself; the code
    in its tasks keeps that of its projects. counted: where the counts are published. home: web page. commit: of the
    Git repository at `home`, from which the loader was written. needs: what running its tasks takes, in words.
    """

    name: str
    title: str
    loader: str
    licence: str
    home: str
    counted: str
    needs: str
    splits: Mapping[str, Split] = field(default_factory=dict)
    commit: str = ""

    def split(self, name: str) -> Split:
        """Raises `RegistryError` with the splits that there are."""
        if name not in self.splits:
            raise RegistryError(unknown(f"split of {self.name}", name, self.splits))
        return self.splits[name]

    def folder(self, given: Path | None) -> Path:
        """Where its files lie: as given, else `corpora/NAME` in the working directory."""
        return (given if given is not None else Path(DEFAULT_FOLDER, self.name)).expanduser()


def checkout_folder(corpus: Corpus, given: Path | None, holds: str) -> Path:
    """The folder of a corpus that is a Git repository. Raises `CorpusError` where `holds` is not in it."""
    folder = corpus.folder(given)
    if (folder / holds).exists():
        return folder
    raise CorpusError(
        f"{corpus.title} is not in {folder.resolve()} ({holds} is missing). On a machine that is online:\n"
        f"  git clone {corpus.home} {folder}\n"
        f"  git -C {folder} checkout {corpus.commit}\n"
        f"A clone that lies elsewhere is named in the task set: {corpus.name}:SPLIT?folder=DIR"
    )
