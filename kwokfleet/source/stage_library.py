"""The parsed Stages of the library, by set."""

import functools
from collections.abc import Iterator, Mapping

from kwokfleet.documents import parser
from kwokfleet.kube.objects import Manifest
from kwokfleet.source import shipped_files


class StageLibrary(Mapping[str, tuple[Manifest, ...]]):
    """The Stages of each set; a set is parsed on first use."""

    def __getitem__(self, name: str) -> tuple[Manifest, ...]:
        if name not in shipped_files.stage_sets():
            raise KeyError(name)
        return _stages(name)

    def __iter__(self) -> Iterator[str]:
        return iter(shipped_files.stage_sets())

    def __len__(self) -> int:
        return len(shipped_files.stage_sets())


@functools.cache
def _stages(name: str) -> tuple[Manifest, ...]:
    documents, _ = parser.parse(f"{name}.yaml", shipped_files.stage_set(name))
    return tuple(document.value for document in documents if isinstance(document.value, dict))
