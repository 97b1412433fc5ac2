"""What a text cites, and whether a page says it (S2-31)."""

from __future__ import annotations

import pytest

from loops.core.citations import Citation, citations, links, says

A, B, WIKI = "https://a.example/x", "https://b.example", "https://en.example/wiki/A_(b)"


def pairs(text: str) -> list[tuple[tuple[str, ...], str]]:
    return [(one.urls, one.quote) for one in citations(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Nothing is cited, only "said".', []),
        (f"See {A}, or ({B}).", [((A, B), "")]),
        (f"It holds [so]({A}).", [((A,), "")]),
        (f"[so]({WIKI}) and so on.", [((WIKI,), "")]),
        (f"(as {WIKI} has it)", [((WIKI,), "")]),
        (f'It "is. So." [so]({A} "A title").', [((A,), "is. So.")]),
        (f"It \u201cis\u201d, see <{A}>.", [((A,), "is")]),
        (f"Es \u201eist\u201c so: {A}", [((A,), "ist")]),
        (f'["is so"]({A})', [((A,), "is so")]),
        (f'"One" [a]({A}). "Two" [b]({B}).', [((A,), "One"), ((B,), "Two")]),
        (f'He says "one". [a]({A})', [((A,), "one"), ((A,), "")]),
        (f'"One\n  two" [a]({A})', [((A,), "One two")]),
        (f'- "one" {A}\n- {B}', [((A,), "one"), ((B,), "")]),
        (f'"one"\n\n{A}', [((A,), "")]),
        (f'{A} says "one" and "two".', [((A,), "one"), ((A,), "two")]),
        (f'"one" {A}\n\n"one" {A}', [((A,), "one")]),
        (f'<a href="{A}">it</a>', [((A,), "")]),
    ],
)
def test_s2_31_links_are_found_with_what_is_quoted_beside_them(
    text: str, found: list[tuple[tuple[str, ...], str]]
) -> None:
    assert pairs(text) == found


def test_s2_31_each_link_is_opened_once() -> None:
    cited = [Citation(urls=(A, B), quote="x"), Citation(urls=(B,))]
    assert links(cited) == (A, B)


@pytest.mark.parametrize(
    ("page", "quote", "said"),
    [
        ("It is\n  SO today.", "it is so", True),
        ("It is so.", "it is not so", False),
        ("A party.", "art", False),
        ("<p>It <b>is</b>, they say,<br>so &amp; so.</p>", "is, they say, so & so", True),
        ("<html><script>it is so</script><p title='it is so'>No.</p>", "it is so", False),
        ("<html><!-- it is so --><p>No.</p>", "it is so", False),
        ("if x<y then it is so", "x<y then it", True),
        ("It\u2019s so", "it's so", True),
        ("anything", "...", False),
    ],
)
def test_s2_31_a_page_says_the_words_or_does_not(page: str, quote: str, said: bool) -> None:
    assert says(page, quote) is said
