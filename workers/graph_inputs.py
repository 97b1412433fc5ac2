"""What a node of a graph starts with: its own document and what the nodes before it came to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from loops.core.errors import LoopwardenError
from loops.core.graph_run import NodeResult
from loops.core.placeholders import Placeholder, fill, placeholders
from loops.patterns import get
from loops.store import graphs
from loops.store.submit import TITLE_LENGTH, Submission
from workers.intake import shared_models


class CannotStart(LoopwardenError):
    """What the node needs from the ones before it is not there."""


def submission_for(scene: graphs.Scene, name: str, done: Mapping[str, NodeResult]) -> Submission:
    """The node's task with every placeholder filled and its source found. Raises `CannotStart`."""
    document = scene.nodes[name].document
    submission = Submission(**{**document["submission"], "notes": ()})

    def value(found: Placeholder) -> str:
        return _value(scene, done, found)

    filled = replace(
        submission,
        title=" ".join(fill(submission.title, value).split())[:TITLE_LENGTH],
        local_aim=fill(submission.local_aim, value),
        spec=_filled(submission, value),
        source=_source(scene, document, done) or submission.source,
    )
    return replace(filled, notes=shared_models(filled))


def prose(submission: Submission) -> Iterator[tuple[str, str]]:
    """The texts of a task that may hold placeholders: never a command, never a name."""
    yield "title", submission.title
    yield "local_aim", submission.local_aim
    for name in _prose_fields(submission.pattern):
        text = submission.spec.get(name)
        if isinstance(text, str):
            yield f"spec.{name}", text


def elsewhere(submission: Submission) -> Iterator[tuple[str, str]]:
    """The other texts of its spec, where a placeholder would be an error."""
    fields = _prose_fields(submission.pattern)
    for name, value in submission.spec.items():
        if name not in fields:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"spec.{name}", text


def _prose_fields(pattern: str) -> dict[str, bool]:
    """The fields of the spec that are text for people and agents, and whether they hold JSON."""
    found = {}
    for name, item in get(pattern).spec.model_fields.items():
        extra = item.json_schema_extra if isinstance(item.json_schema_extra, dict) else {}
        if item.annotation is str and extra.get("multiline"):
            found[name] = bool(extra.get("json"))
    return found


def _filled(submission: Submission, value: Any) -> dict[str, Any]:
    spec = dict(submission.spec)
    for name, is_json in _prose_fields(submission.pattern).items():
        text = spec.get(name)
        if isinstance(text, str) and placeholders(text):
            spec[name] = (
                json.dumps(_leaves(json.loads(text), value)) if is_json else fill(text, value)
            )
    return spec


def _leaves(node: Any, value: Any) -> Any:
    """JSON with its texts filled: what is put in can close no quote and add no key."""
    match node:
        case str():
            return fill(node, value)
        case list():
            return [_leaves(one, value) for one in node]
        case dict():
            return {key: _leaves(one, value) for key, one in node.items()}
    return node


def _value(scene: graphs.Scene, done: Mapping[str, NodeResult], found: Placeholder) -> str:
    if not found.node:
        return scene.graph.aim
    output = done[found.node].output or {}
    value = output.get(found.part, "")
    return "\n".join(value) if isinstance(value, list) else str(value)


def _source(
    scene: graphs.Scene, document: Mapping[str, Any], done: Mapping[str, NodeResult]
) -> dict[str, Any] | None:
    """The files that another node delivered; its own source when it changed nothing."""
    name = document.get("source_from", "")
    if not name:
        return None
    task = scene.nodes[name].task
    if task is None or task.source is None:
        raise CannotStart(f"{name} has no files to hand on")
    output = done[name].output or {}
    if not output.get("handoff"):
        return dict(task.source)
    return {
        **task.source,
        "dirty_commit": output["commit"],
        "dirty_pack": output["handoff"],
        "notes": [f"starts from what {task.key} delivered, {output['commit'][:12]}"],
    }
