"""The links that a text cites, and the words it quotes with them (S2-31)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Final

from loops.core.plan import normalised

MOST_LINKS: Final = 20

_LINK = re.compile(
    r"(?P<target>\]\(\s*<?)?"
    r"(?P<url>https?://(?:[^\s<>\"()\[\]`|\\\u201c-\u201e\u00ab\u00bb]|\([^\s<>\"()]*\))+)"
    r"(?(target)(?:>?(?:\s+\"[^\"]*\")?\s*\))?)",
    re.IGNORECASE,
)
_QUOTE = re.compile(
    '"([^"]+)"|\u201c([^\u201d]+)\u201d|\u201e([^\u201c\u201d]+)[\u201c\u201d]'
    "|\u00ab([^\u00bb]+)\u00bb"
)
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+#>|]|\d+[.)])(?:\s|#))")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_HELD = re.compile("\ue000([LQ])([0-9]+)\ue001")
_MARKUP = re.compile(r"<(?:!doctype|html|head|body|div|p)\b", re.IGNORECASE)
_INLINE = frozenset({"a", "b", "cite", "code", "em", "i", "q", "span", "strong", "sub", "sup", "u"})
_UNSEEN = frozenset({"script", "style", "template", "noscript"})


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Links that stand together, and one quotation with them; empty where nothing is quoted.

    Each of the links must open. The words must stand on one of the pages.
    """

    urls: tuple[str, ...]
    quote: str = ""


def citations(text: str) -> tuple[Citation, ...]:
    """Every link of the text with what is quoted beside it, each pair once.

    A quotation belongs to the links of its sentence; where there are none, to those of its
    paragraph or list item.
    """
    found = (one for part in _PARAGRAPH.split(text) for one in _of_paragraph(part))
    return tuple(dict.fromkeys(found))


def links(cited: Iterable[Citation]) -> tuple[str, ...]:
    """The addresses to open, each once."""
    return tuple(dict.fromkeys(url for one in cited for url in one.urls))


def says(page: str, quote: str) -> bool:
    """Whether the words stand in the page, whatever the case, white space and quote marks."""
    words = normalised(quote)
    shown = normalised(_shown(page) if _MARKUP.search(page) else page)
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", shown) is not None


def _of_paragraph(text: str) -> Iterator[Citation]:
    """Links and quotations are put aside first: a full stop inside one ends no sentence."""
    urls: list[str] = []
    quotes: list[str] = []

    def link(found: re.Match[str]) -> str:
        urls.append(found["url"].rstrip(".,;:!?'*_~"))
        return f"\ue000L{len(urls) - 1}\ue001"

    def quote(found: re.Match[str]) -> str:
        inside = next(filter(None, found.groups()))
        within = "".join(one[0] for one in _HELD.finditer(inside))
        quotes.append(" ".join(_HELD.sub(" ", inside).split()))
        return f"\ue000Q{len(quotes) - 1}\ue001{within}"

    held = _QUOTE.sub(quote, _LINK.sub(link, re.sub("[\ue000\ue001]", " ", text)))
    every = tuple(dict.fromkeys(urls))
    for sentence in _SENTENCE.split(held) if every else ():
        marks = _HELD.findall(sentence)
        here = tuple(dict.fromkeys(urls[int(at)] for kind, at in marks if kind == "L"))
        said = [quotes[int(at)] for kind, at in marks if kind == "Q"]
        said = [one for one in said if normalised(one)]
        yield from (Citation(urls=here or every, quote=one) for one in said)
        if here and not said:
            yield Citation(urls=here)


def _shown(page: str) -> str:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return "".join(reader.parts)


class _Reader(HTMLParser):
    """The text of a page that a person would see."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unseen = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if not self._unseen and tag in _UNSEEN:
            self._unseen = tag
        self._space(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unseen:
            self._unseen = ""
        self._space(tag)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data)

    def _space(self, tag: str) -> None:
        if tag not in _INLINE:
            self.parts.append(" ")
