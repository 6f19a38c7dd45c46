"""The parsed Stages of the library, by set."""

import functools
from collections.abc import Iterator, Mapping

from kwokfleet.documents import parser
from kwokfleet.kube.objects import Manifest
from kwokfleet.source import library


class StageLibrary(Mapping[str, tuple[Manifest, ...]]):
    """The Stages of each set; a set is parsed on first use."""

    def __getitem__(self, name: str) -> tuple[Manifest, ...]:
        if name not in library.stage_sets():
            raise KeyError(name)
        return _stages(name)

    def __iter__(self) -> Iterator[str]:
        return iter(library.stage_sets())

    def __len__(self) -> int:
        return len(library.stage_sets())


@functools.cache
def _stages(name: str) -> tuple[Manifest, ...]:
    documents, _ = parser.parse(f"{name}.yaml", library.stage_set(name))
    return tuple(document.value for document in documents if isinstance(document.value, dict))
