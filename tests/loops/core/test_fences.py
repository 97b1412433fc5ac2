"""S0-3, S0-G1 and the code block cases met in the field."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from loops.core.fences import FencedBlock, UnusableAnswer, only_code_block, only_fenced_block


def fault(text: str) -> str:
    with pytest.raises(UnusableAnswer) as caught:
        only_fenced_block(text)
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "lang", "code"),
    [
        pytest.param(
            "~~~markdown\n# Note\n\n```\nx = 1\n```\n~~~\n",
            "markdown",
            "# Note\n\n```\nx = 1\n```\n",
            id="RC028-backticks-inside-tildes",
        ),
        pytest.param(
            "~~~python\nprint(1)\n```\n~~~\n", "python", "print(1)\n```\n", id="RC028-other-mark"
        ),
        pytest.param(
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1\n```\n',
            "python",
            'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1\n',
            id="RC030-indented-fence-is-content",
        ),
        pytest.param("``` python \nprint(1)\n```\n", "python", "print(1)\n", id="RC032-space"),
        pytest.param("```python\r\nprint(1)\r\n```\r\n", "python", "print(1)\r\n", id="RC032-crlf"),
        pytest.param("```\nprint(1)\n```", "", "print(1)\n", id="RC032-no-last-newline"),
        pytest.param(
            "```python\ndef a():\n    pass\n\n\ndef b():\n    x = 'y'   \n```\n",
            "python",
            "def a():\n    pass\n\n\ndef b():\n    x = 'y'   \n",
            id="RC036-blank-lines-and-trailing-spaces",
        ),
        pytest.param("```\na\rb\r\n\nc\n```", "", "a\rb\r\n\nc\n", id="mixed-line-ends"),
        pytest.param("```\na\x0cb\u2028c\x85d\n```", "", "a\x0cb\u2028c\x85d\n", id="no-line-ends"),
        pytest.param("````md\n```\nx\n```\n````", "md", "```\nx\n```\n", id="longer-outer-fence"),
        pytest.param("```\nx\n`````  \nafter", "", "x\n", id="longer-closing-fence"),
        pytest.param("  ```\n  a\n b\n    c\n   ```", "", "a\nb\n  c\n", id="indented-fence"),
        pytest.param("  ```\n\ta\n  ```", "", "  a\n", id="half-a-tab"),
        pytest.param("```py title='x'\na\n```", "py", "a\n", id="more-words-after-lang"),
        pytest.param("```\n```", "", "", id="empty-block"),
        pytest.param("Here:\n\n```\na\n```\nThat was it.", "", "a\n", id="prose-around"),
        pytest.param("text `x` and ``` y ```\n\n```\na\n```", "", "a\n", id="inline-code"),
    ],
)
def test_s0_03_only_the_inside_of_the_block_is_kept(text: str, lang: str, code: str) -> None:
    assert only_fenced_block(text) == FencedBlock(lang=lang, code=code)
    assert only_code_block(text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            "```markdown\n# Tool\n\n```\npip install tool\n```\n\nDone.\n```\n",
            "more_than_one_code_block",
            id="RC026-fence-inside-a-fence",
        ),
        pytest.param(
            "```python\nDOC = '''\n```\nf()\n```\n'''\n```\n",
            "more_than_one_code_block",
            id="RC030-fence-in-a-string",
        ),
        pytest.param(
            "Here it is:\n```python\nprint(1)\n", "unclosed_code_block", id="RC034-unclosed"
        ),
        pytest.param(
            "    ```python\n    print(1)\n    ```\n", "no_code_block", id="RC034-indented-code"
        ),
        pytest.param("print(1)", "no_code_block", id="prose-only"),
        pytest.param("", "no_code_block", id="empty"),
        pytest.param("```", "unclosed_code_block", id="lone-fence"),
        pytest.param("````\na\n```", "unclosed_code_block", id="closing-fence-too-short"),
        pytest.param("```\na\n    ```", "unclosed_code_block", id="closing-fence-too-deep"),
        pytest.param("```\na\n``` x", "unclosed_code_block", id="words-after-closing-fence"),
        pytest.param("``` a`b\nx\n", "no_code_block", id="backtick-in-info"),
        pytest.param("~~~\na\n~~~\n\n> ```\n> b\n> ```", "more_than_one_code_block", id="quote"),
        pytest.param("- ```\n  a\n  ```", "nested_code_block", id="in-a-list"),
        pytest.param("> ```\n> a\n> ```", "nested_code_block", id="in-a-quote"),
        pytest.param("<div>\n```\na\n```\n</div>", "no_code_block", id="inside-html"),
        pytest.param("```\na\0b\n```", "bad_character", id="nul"),
        pytest.param("```\na\ud800b\n```", "bad_character", id="lone-surrogate"),
    ],
)
def test_s0_g1_anything_but_one_closed_block_is_refused(text: str, code: str) -> None:
    assert fault(text) == code


def test_s0_g1_the_message_says_how_to_mend_it() -> None:
    with pytest.raises(UnusableAnswer, match=r"2 code blocks.*exactly one.*longer outer fence"):
        only_code_block("```\na\n```\n\n```\nb\n```")


ALPHABET = ["```", "~~~", "````", "\n", "\r\n", "\r", " ", "   ", "\t", "> ", "- ", "1. "]
ALPHABET += ["x", "\x0b", "\x0c", "\x1c", "\u2028", "\x85", "<p>", "[a]: b", "é"]
pieces = st.lists(st.sampled_from(ALPHABET), max_size=15).map("".join)
answers = pieces | st.builds(
    "{0}{4}{1}~~~{2}{4}{3}{4}{1}~~~{4}".format,
    st.sampled_from(["", "x", "- x", "> x\r"]),
    st.sampled_from(["", " ", "   "]),
    st.sampled_from(["", "py", " a b"]),
    pieces.filter(lambda text: "~" not in text),
    st.sampled_from(["\n", "\r\n", "\r"]),
)


@given(answers)
def test_the_cut_agrees_with_the_commonmark_parser(text: str) -> None:
    """Apart from line endings, the code is the parser's own content, whatever surrounds it."""
    assume(not re.search(r"\r[ \t]+\n", text))  # taking the indent away would join the two
    try:
        code = only_code_block(text)
    except UnusableAnswer:
        return
    (token,) = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    assert re.sub(r"\r\n?", "\n", code) == token.content


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0~")),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_code_comes_back_byte_for_byte(code: str, end: str) -> None:
    assume(not (end == "\r" and code.startswith("\n")))  # the two would be one line end
    body = code + end
    assert only_code_block(f"Here:{end}{end}~~~py{end}{body}~~~{end}") == body


@given(st.text(alphabet=st.characters(exclude_categories=())) | answers)
def test_any_text_has_a_block_or_is_refused(text: str) -> None:
    with contextlib.suppress(UnusableAnswer):
        assert isinstance(only_code_block(text), str)
