"""From a message of the Messages API to a `Reply`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loops.core.effects import Reply, ReplyStop, ToolCall, Usage
from loops.core.text import clean
from workers.agents.faults import MalformedAnswer
from workers.agents.pricing import PriceList, Spent

if TYPE_CHECKING:
    import anthropic.types

# A number beyond this is no report but a fault of the server, and would fit no column.
_MOST_TOKENS = 10**12
_NO_COUNTS = (
    "The model server's answer has no usable token counts, so the call is charged its most."
    " Let base_url name a server that reports input_tokens and output_tokens."
)


def reply_of(message: anthropic.types.Message, prices: PriceList | None) -> Reply:
    """The reply. Content is found by its type, wherever it stands.

    Raises `MalformedAnswer` for a message that is not complete, and for an unknown stop reason.
    """
    if message.stop_reason is None:
        raise MalformedAnswer("The model server's answer ends in the middle.")
    spent = spent_of(message)
    row = prices.row(spent.prompt) if prices else None
    cost = row.cost_microusd(spent) if row else None
    try:
        stop = ReplyStop(message.stop_reason)
    except ValueError:
        raise MalformedAnswer(
            f"The model server's answer has an unknown stop reason: {message.stop_reason!r}.",
            tokens=spent.total,
            cost_microusd=cost,
        ) from None
    return Reply(
        text=clean("".join(block.text for block in message.content if block.type == "text")),
        stop=stop,
        turn=[block.to_dict() for block in message.content],
        tool_calls=_tool_calls(message),
        usage=Usage(
            input_tokens=spent.prompt,
            output_tokens=spent.output,
            cost_microusd=cost,
            cache_read_tokens=spent.cache_read,
            cache_write_tokens=spent.cache_write + spent.cache_write_1h,
        ),
        model=clean(str(message.model)),
        note=_note(message),
        price=row.as_stored() if row else None,
    )


def spent_of(message: anthropic.types.Message) -> Spent:
    """What the server says it billed. `input_tokens` there excludes what a cache was used for.

    Raises `MalformedAnswer` when it does not say so: then its reservation is charged.
    """
    usage = message.usage
    written = _cached(usage.cache_creation_input_tokens)
    detail = usage.cache_creation
    long_written = min(_cached(detail.ephemeral_1h_input_tokens), written) if detail else 0
    return Spent(
        input=_count(usage.input_tokens),
        output=_count(usage.output_tokens),
        cache_read=_cached(usage.cache_read_input_tokens),
        cache_write=written - long_written,
        cache_write_1h=long_written,
    )


def _cached(value: Any) -> int:
    """A server without caches does not count them."""
    return 0 if value is None else _count(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise MalformedAnswer(_NO_COUNTS)
    return value


def _tool_calls(message: anthropic.types.Message) -> tuple[ToolCall, ...]:
    found = []
    for block in message.content:
        if block.type == "tool_use":
            arguments = block.input if isinstance(block.input, dict) else {}
            found.append(ToolCall(id=block.id, name=block.name, arguments=arguments))
    return tuple(found)


def _note(message: anthropic.types.Message) -> str:
    details = message.stop_details
    if details is None:
        return ""
    return clean(": ".join(part for part in (details.category, details.explanation) if part))
