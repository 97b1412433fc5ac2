"""No code of ours stands in what people read."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import loops
import workers
from loops.core.errors import LoopwardenError

_CODE = re.compile(r"\b(?:S\d-|RC\d|I\d+\b)|https?://|pydantic")


def _kinds(kind: type[LoopwardenError]) -> Iterator[type[LoopwardenError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)


def test_the_sentence_of_every_error_is_free_of_references() -> None:
    for floor in (loops, workers):
        for found in pkgutil.walk_packages(floor.__path__, f"{floor.__name__}."):
            if ".migrations" not in found.name:
                importlib.import_module(found.name)
    kinds = {*_kinds(LoopwardenError)}
    assert len(kinds) > 30
    for kind in kinds:
        if kind.__init__ is LoopwardenError.__init__:
            assert not _CODE.search(str(kind())), kind
            assert "\n\n" not in str(kind()), kind
