"""Reads JSON and YAML files without what could be read in two ways."""

from __future__ import annotations

import json
from typing import Any

import yaml

from dashboard.api.bodies import check_depth, unique
from dashboard.api.problems import Refusal

_STAMP = "tag:yaml.org,2002:timestamp"


class Unreadable(ValueError):
    """The text is no document."""


class _Loader(yaml.SafeLoader):
    """Plain data: no anchors, which can grow without end, no dates, no key twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag != _STAMP]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node that is written out."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs leave it out
            raise yaml.MarkedYAMLError(
                problem="aliases are not read", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are different texts."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands there twice",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        found = super().construct_mapping(node, deep=deep)
        return {str(key): value for key, value in found.items()}


def read_document(text: str, *, is_json: bool) -> Any:
    """The data of a JSON or YAML text. Raises `Unreadable`, which says where and why."""
    try:
        if is_json:
            data = json.loads(text, object_pairs_hook=unique)
        else:
            data = yaml.load(text, Loader=_Loader)  # noqa: S506 - ours is a SafeLoader
        check_depth(data)
        json.dumps(data, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Unreadable(f"{error.problem}{place}") from error
    except (yaml.YAMLError, ValueError, TypeError, Refusal) as error:
        raise Unreadable(str(error)) from error
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error
    return data
