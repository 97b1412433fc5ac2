"""The one fenced code block of an answer (S0-3, S0-G1).

CommonMark decides what a fence is, by markdown-it's block parser. The code itself is cut from the
source lines, because the parser normalises line endings and NUL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from loops.core.errors import FormatFault
from loops.core.text import storable

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_TAB_WIDTH = 4
_HOW = "Send the complete result in exactly one fenced code block that starts at the left margin"


class UnusableAnswer(FormatFault):
    """The coder's answer holds no single code block that could be kept.

    `code` is one of no_code_block, more_than_one_code_block, unclosed_code_block,
    nested_code_block, bad_character.
    """


@dataclass(frozen=True, kw_only=True)
class FencedBlock:
    """The inside of a fence, with its line endings and trailing spaces as sent."""

    lang: str
    """The first word after the opening fence, or an empty string."""
    code: str


def only_code_block(text: str) -> str:
    """The code of the only fenced block in the answer. Raises `UnusableAnswer`."""
    return only_fenced_block(text).code


def only_fenced_block(text: str) -> FencedBlock:
    """The only fenced block in the answer; prose around it is dropped.

    A fence inside a list or a quote counts as a block but cannot be kept, since its lines carry
    the markers of the list or quote. Raises `UnusableAnswer`.
    """
    fences = [token for token in _parser().parse(text) if token.type == "fence"]
    if not fences:
        raise UnusableAnswer("no_code_block", f"The answer holds no fenced code block. {_HOW}.")
    if len(fences) > 1:
        raise UnusableAnswer(
            "more_than_one_code_block",
            f"The answer holds {len(fences)} code blocks. {_HOW}."
            " If the content holds fences itself, use a longer outer fence.",
        )
    block = _cut(text, fences[0])
    if not storable(block.code):
        raise UnusableAnswer(
            "bad_character", "The code holds a NUL or half of a surrogate pair. Write an escape."
        )
    return block


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _cut(text: str, fence: Token) -> FencedBlock:
    if fence.level or fence.map is None:
        raise UnusableAnswer(
            "nested_code_block", f"The code block stands inside a list or a quote. {_HOW}."
        )
    first, end = fence.map
    opening, *body = _LINE.findall(text)[first:end]
    if not body or not _closes(body[-1], fence.markup):
        raise UnusableAnswer(
            "unclosed_code_block",
            f"The code block is not closed. {_HOW} and ends with {fence.markup} on its own line.",
        )
    indent = len(opening) - len(opening.lstrip(" "))
    words = fence.info.split(maxsplit=1)
    return FencedBlock(
        lang=words[0] if words else "",
        code="".join(_without_indent(line, indent) for line in body[:-1]),
    )


def _closes(line: str, markup: str) -> bool:
    mark = re.escape(markup[0])
    pattern = rf" {{0,3}}{mark}{{{len(markup)},}}[ \t]*[\r\n]*"
    return re.fullmatch(pattern, line) is not None


def _without_indent(line: str, columns: int) -> str:
    """The line without up to so many columns of leading space; half a tab becomes spaces."""
    column = position = 0
    while column < columns and line[position : position + 1] in (" ", "\t"):
        column += _TAB_WIDTH - column % _TAB_WIDTH if line[position] == "\t" else 1
        position += 1
    return " " * (column - columns) + line[position:]
