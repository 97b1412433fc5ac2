"""Models behind the Messages API: Anthropic's own, and every server that speaks it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from loops.core.effects import Message, Reply
from loops.core.errors import AgentFault
from loops.core.limits import Amount
from loops.core.text import clean
from workers.agents.answers import reply_of
from workers.agents.base import AgentRequest, Prices, ProviderConfig, ProviderKind
from workers.agents.connections import client_for, watched
from workers.agents.faults import fault_of, key_missing
from workers.agents.pricing import PriceList, list_prices, own_prices

if TYPE_CHECKING:
    import anthropic.types

_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
_NO_KEY = "none"
# What a server adds to a prompt by itself: the frame of a conversation, of tools, of a schema.
_FRAME_TOKENS, _TOOLS_TOKENS, _SCHEMA_TOKENS = 100, 1_000, 1_000
_COUNT_SECONDS = 10.0

_Price = Field(default=None, ge=0, max_digits=12, decimal_places=6, allow_inf_nan=False)


class Config(ProviderConfig):
    """Which model, where, and how it is used."""

    model: str = Field(min_length=1)
    base_url: str = "https://api.anthropic.com"
    key_env: str = Field(default="ANTHROPIC_API_KEY", pattern=r"^([A-Z][A-Z0-9_]*)?$")
    """The environment variable that holds the key; empty for a server that wants none."""
    max_tokens: int = Field(default=16_000, ge=1, le=1_000_000)
    """The longest answer, thinking included."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    thinking: Literal["adaptive", "disabled"] | None = None
    """None leaves it to the model."""
    structured_verdicts: bool = True
    """The server takes JSON schemas for answers."""
    tools: bool = True
    """The server takes tools, so the model can work in a repository."""
    prompt_caching: bool = True
    """Cache the growing conversation of work with tools."""
    count_tokens: bool = False
    """Ask the server how long a prompt is before it is reserved, instead of counting its bytes."""
    timeout_seconds: float = Field(default=600, gt=0, le=86_400, allow_inf_nan=False)
    """The longest one request may take, from its first byte to its last."""
    cache_read_usd_per_mtok: Decimal | None = _Price
    cache_write_usd_per_mtok: Decimal | None = _Price
    """Cache prices beside the profile's own prices for input and output."""

    @field_validator("key_env")
    @classmethod
    def _a_models_key(cls, name: str) -> str:
        if name.startswith(("LOOPWARDEN_", "DATABASE_", "REDIS_")):
            raise ValueError("names a setting of Loopwarden, which is no key of a model")
        return name

    @model_validator(mode="after")
    def _safe_address(self) -> Config:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("base_url must be an http or https address")
        if url.username or url.password or url.query:
            raise ValueError("base_url must hold no password and no query: name a key_env")
        if url.scheme == "http" and self.key_env and url.hostname not in _LOCAL:
            raise ValueError(
                "base_url must be https, or the key would travel in the clear;"
                ' for a server that wants no key set key_env to ""'
            )
        return self


@dataclass(frozen=True, kw_only=True)
class MessagesAgent:
    """The provider. One call is one HTTP request."""

    config: Config
    prices: Prices | None

    works_in_workspace = False

    @property
    def identity(self) -> str:
        """The model and where it is."""
        return f"{self.config.model} at {self.config.base_url}"

    @property
    def supports_tools(self) -> bool:
        """Whether the server takes tools."""
        return self.config.tools

    @property
    def asks_to_reserve(self) -> bool:
        """Whether the server counts the tokens."""
        return self.config.count_tokens

    @property
    def priced(self) -> bool:
        """Whether the cost of a call has a known upper bound."""
        return self._price_list is not None

    def reserve(self, request: AgentRequest) -> Amount:
        """The longest prompt and the longest answer, at the highest price that can apply."""
        prompt = self._prompt_tokens(self._body(request))
        longest, prices = self.config.max_tokens, self._price_list
        cost = prices.worst_microusd(prompt, longest) if prices else 0
        return Amount(model_calls=1, tokens=prompt + longest, cost_microusd=cost)

    def unused(self, turns_by_role: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """Nothing: a model has no script."""
        return []

    def call(self, request: AgentRequest, *, deadline: float, cancelled: threading.Event) -> Reply:
        """Send one request and read its answer to the end.

        Raises `DeadlinePassed`, `CallCancelled` or a fault of `workers.agents.faults`.
        """
        key = self._key()
        client = client_for(self.config.base_url, key)
        until = min(deadline, time.monotonic() + self.config.timeout_seconds)
        with watched(until, cancelled) as watch:
            try:
                if (late := watch.fault) is not None:
                    raise type(late)(tokens=0, cost_microusd=0)
                with client.messages.stream(**self._body(request)) as stream:
                    message: anthropic.types.Message = stream.get_final_message()
                return reply_of(message, self._price_list)
            except AgentFault:
                raise
            except Exception as error:
                fault = watch.fault or fault_of(error, secret=key)
        # Outside of the handler: what the SDK raised may quote the answer and must not be logged.
        raise fault

    @property
    def _price_list(self) -> PriceList | None:
        if self.prices is None:
            return list_prices(self.config.model, self.config.base_url)
        return own_prices(
            self.prices,
            cache_read=self.config.cache_read_usd_per_mtok,
            cache_write=self.config.cache_write_usd_per_mtok,
        )

    def _key(self) -> str:
        if not self.config.key_env:
            return _NO_KEY
        key = os.environ.get(self.config.key_env, "").strip()
        if not key:
            raise key_missing(self.config.key_env)
        return key

    def _body(self, request: AgentRequest) -> dict[str, Any]:
        config = self.config
        shape: dict[str, Any] = {"effort": config.effort} if config.effort else {}
        if request.schema and config.structured_verdicts:
            shape["format"] = {"type": "json_schema", "schema": dict(request.schema)}
        body: dict[str, Any] = {
            "model": config.model,
            "max_tokens": config.max_tokens,
            "messages": messages_of(request.messages),
        }
        if request.system:
            body["system"] = clean(request.system)
        if config.thinking:
            body["thinking"] = {"type": config.thinking}
        if shape:
            body["output_config"] = shape
        if request.tools:
            body["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": dict(t.schema)}
                for t in request.tools
            ]
            # A single question would pay for a cache that nobody reads.
            if config.prompt_caching:
                body["cache_control"] = {"type": "ephemeral"}
        return body

    def _prompt_tokens(self, body: dict[str, Any]) -> int:
        """An upper bound: no tokenizer makes more tokens than there are bytes."""
        size = len(json.dumps(body, ensure_ascii=False).encode()) + _FRAME_TOKENS
        size += _TOOLS_TOKENS if "tools" in body else 0
        size += _SCHEMA_TOKENS if "output_config" in body else 0
        counted = self._counted(body) if self.config.count_tokens else None
        # The server's count is an estimate too, so it gets a margin.
        return size if counted is None else min(size, counted + counted // 20 + _FRAME_TOKENS)

    def _counted(self, body: dict[str, Any]) -> int | None:
        body = {key: value for key, value in body.items() if key != "max_tokens"}
        with watched(time.monotonic() + _COUNT_SECONDS, threading.Event()):
            try:
                client = client_for(self.config.base_url, self._key())
                return client.messages.count_tokens(**body).input_tokens
            except Exception:
                return None


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as it is sent: turns unchanged and in order, but no empty text (RC045)."""
    sent = []
    for message in messages:
        content = _sendable(message.content)
        if content:
            sent.append({"role": message.role, "content": content})
    return sent


def _sendable(content: Any) -> Any:
    if isinstance(content, str):
        return clean(content) if content.strip() else ""
    return [_cleaned(block) for block in content if not _is_empty_text(block)]


def _is_empty_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _cleaned(value: Any) -> Any:
    """The same value without what no request can carry (RC047)."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


PROVIDER = ProviderKind(
    name="anthropic",
    summary="Asks a model over the Messages API; works in a repository through tools of ours.",
    config=Config,
    build=lambda config, prices: MessagesAgent(config=config, prices=prices),
)
