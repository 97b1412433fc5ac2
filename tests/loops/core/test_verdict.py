"""S0-6, S0-7, S0-8, S0-G2, S0-G3, S0-G5 and the verdict cases met in the field."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loops.core.verdict import InvalidVerdict, Verdict, VerdictKind, parse_verdict

APPROVED = '{"verdict": "APPROVED", "reasons": []}'


def changes(*reasons: str) -> Verdict:
    return Verdict(verdict=VerdictKind.CHANGES_REQUESTED, reasons=reasons)


def fault(text: str) -> str:
    with pytest.raises(InvalidVerdict) as caught:
        parse_verdict(text)
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '```json\n{"verdict": "CHANGES_REQUESTED",'
            ' "reasons": ["add() returns None for negative input"]}\n```',
            changes("add() returns None for negative input"),
            id="RC001-fenced",
        ),
        pytest.param(
            '```json\n{"verdict":"CHANGES_REQUESTED","reasons":'
            '["the README sample must open with ```python and close with ```"]}\n```',
            changes("the README sample must open with ```python and close with ```"),
            id="RC014-backticks-in-a-fence",
        ),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":["wrap it: ```json\\n{}\\n```"]}',
            changes("wrap it: ```json\n{}\n```"),
            id="RC014-a-fence-in-a-reason",
        ),
        pytest.param(
            '{"reasons": ["b", "a", "b"], "verdict": "CHANGES_REQUESTED"}',
            changes("b", "a", "b"),
            id="order-and-repeats-kept",
        ),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":["\\ud83d\\ude00 \\u00e9"]}',
            changes("😀 é"),
            id="surrogate-pair",
        ),
        pytest.param(
            '{"verdict":"APPROVED","reasons":["well tested"]}',
            Verdict(verdict=VerdictKind.APPROVED, reasons=("well tested",)),
            id="approved-with-a-reason",
        ),
    ],
)
def test_s0_06_a_verdict_and_its_reasons_are_read(text: str, expected: Verdict) -> None:
    assert parse_verdict(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        APPROVED,
        pytest.param(f"```json\r\n{APPROVED}\r\n```\r\n", id="RC001-crlf"),
        pytest.param(f"\n\n  {APPROVED}  \n", id="RC001-space-around"),
        pytest.param(f"\n ```json\n\n {APPROVED}\t\n\n```\n", id="space-around-and-inside"),
    ],
)
def test_s0_07_bare_json_or_one_json_fence_is_accepted(text: str) -> None:
    assert parse_verdict(text).approved


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            'The output was {"status": "ok"}.\n```json\n' + APPROVED + "\n```",
            "not_json",
            id="RC003-prose-and-a-fence",
        ),
        pytest.param('{"status":"ok"}\n' + APPROVED, "not_json", id="RC003-two-objects"),
        pytest.param('{"verdict":"approved","reasons":[]}', "bad_verdict_value", id="RC005-lower"),
        pytest.param('{"verdict":"Approved","reasons":[]}', "bad_verdict_value", id="RC005-title"),
        pytest.param(
            '{"verdict":" APPROVED ","reasons":[]}', "bad_verdict_value", id="RC005-spaces"
        ),
        pytest.param('{"verdict":["APPROVED"],"reasons":[]}', "bad_verdict_value", id="list"),
        pytest.param('{"verdict":true,"reasons":[]}', "bad_verdict_value", id="true"),
        pytest.param('{"verdict":1e999,"reasons":[]}', "bad_verdict_value", id="infinite-number"),
        pytest.param(
            "Error: upstream closed the connection (503)\nRun with --debug for details.\n",
            "not_json",
            id="RC008-banner",
        ),
        pytest.param("", "empty", id="RC008-empty"),
        pytest.param(" \r\n\t", "empty", id="white-space"),
        pytest.param("```json\n```", "empty", id="empty-fence"),
        pytest.param(
            '{"reasons":["the token is written to the log"]}', "missing_verdict", id="RC010"
        ),
        pytest.param('{"verdict":null,"reasons":[]}', "bad_verdict_value", id="RC010-null"),
        pytest.param("{}", "missing_verdict", id="RC010-nothing"),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":"no test"}', "bad_reasons_type", id="RC012"
        ),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":[404]}', "bad_reasons_type", id="RC012-number"
        ),
        pytest.param('{"verdict":"APPROVED","reasons":null}', "bad_reasons_type", id="RC012-null"),
        pytest.param('{"verdict":"APPROVED"}', "missing_reasons", id="RC012-missing"),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":["it says "not found", so"]}',
            "not_json",
            id="RC016-bare-quotes",
        ),
        pytest.param("{'verdict':'APPROVED','reasons':[]}", "not_json", id="RC016-single-quotes"),
        pytest.param(f"<think>fine</think>\n{APPROVED}", "not_json", id="RC018-think"),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":["missing test"', "not_json", id="RC018-cut"
        ),
        pytest.param("NOTES\nAn earlier version was APPROVED by QA.", "not_json", id="RC022"),
        pytest.param(f"{APPROVED}\nDone.", "not_json", id="prose-after"),
        pytest.param('{"verdict":"APPROVED","reasons":[],}', "not_json", id="trailing-comma"),
        pytest.param('{"verdict":"APPROVED","reasons":[]} // ok', "not_json", id="comment"),
        pytest.param(f"```json\n```json\n{APPROVED}\n```\n```", "not_json", id="nested-fences"),
        pytest.param(f"[{APPROVED}]", "not_an_object", id="list-of-one"),
        pytest.param('"APPROVED"', "not_an_object", id="string"),
    ],
)
def test_s0_07_everything_else_is_refused(text: str, code: str) -> None:
    assert fault(text) == code


def test_s0_08_changes_requested_needs_a_reason_and_approved_does_not() -> None:
    assert fault('{"verdict":"CHANGES_REQUESTED","reasons":[]}') == "no_reasons"
    assert parse_verdict(APPROVED) == Verdict(verdict=VerdictKind.APPROVED, reasons=())


@pytest.mark.parametrize("blank", ["", "  ", "\\n\\t", "\\u00a0"])
@pytest.mark.parametrize("verdict", list(VerdictKind))
def test_s0_g2_a_blank_reason_is_refused(verdict: VerdictKind, blank: str) -> None:
    assert fault(f'{{"verdict":"{verdict}","reasons":["good", "{blank}"]}}') == "blank_reason"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"verdict":"APPROVED","reasons":[],"note":"x"}', "extra_key"),
        ('{"verdict":"APPROVED","reasons":[],"Verdict":"APPROVED"}', "extra_key"),
        ('{"verdict":"APPROVED","reasons":[],"score":NaN}', "not_json"),
        ('{"verdict":"APPROVED","reasons":[],"score":-Infinity}', "not_json"),
        ("\ufeff" + APPROVED, "not_json"),
        ("\u00a0" + APPROVED, "not_json"),
        (APPROVED + "\f", "not_json"),
        pytest.param(
            '{"verdict":"CHANGES_REQUESTED","reasons":["no test"],"verdict":"APPROVED"}',
            "duplicate_key",
            id="RC020-last-would-win",
        ),
        pytest.param(
            '{"verdict":"APPROVED","verdict":"APPROVED","reasons":[]}', "duplicate_key", id="RC020"
        ),
        ('{"verdict":"APPROVED","reasons":[{"a":1,"a":2}]}', "duplicate_key"),
        ('{"verdict":"APPROVED","\\u0076erdict":"APPROVED","reasons":[]}', "duplicate_key"),
        ('{"verdict":"CHANGES_REQUESTED","reasons":["a\\ud800b"]}', "bad_character"),
        ('{"verdict":"CHANGES_REQUESTED","reasons":["a\ud800b"]}', "bad_character"),
        ('{"verdict":"CHANGES_REQUESTED","reasons":["a\\u0000b"]}', "bad_character"),
        ("[" * 100_000, "not_json"),
        ('{"a":' * 100_000, "not_json"),
        ("9" * 5_000, "not_json"),
    ],
)
def test_s0_g3_loose_json_is_refused(text: str, code: str) -> None:
    assert fault(text) == code


@pytest.mark.parametrize(
    "opening",
    ["```", "```JSON", "```json5", "``` json", "```json ", "~~~json", "````json", "```json\r\r"],
)
def test_s0_g5_only_an_exact_json_fence_is_stripped(opening: str) -> None:
    closing = "~~~" if opening.startswith("~") else "```"
    assert fault(f"{opening}\n{APPROVED}\n{closing}") == "not_json"


@pytest.mark.parametrize("closing", ["````", " ```", "``` .", "``", ""])
def test_s0_g5_the_fence_must_close_exactly(closing: str) -> None:
    assert fault(f"```json\n{APPROVED}\n{closing}") == "not_json"


def test_s0_09_the_message_says_what_is_wrong_and_how_to_mend_it() -> None:
    with pytest.raises(InvalidVerdict, match=r"line 1, column 12.*nothing before or after"):
        parse_verdict('{"verdict":}')
    with pytest.raises(InvalidVerdict, match="'note'"):
        parse_verdict('{"verdict":"APPROVED","reasons":[],"note":1}')


def test_a_message_can_always_be_sent_and_stored() -> None:
    with pytest.raises(InvalidVerdict) as caught:
        parse_verdict('{"verdict":"APPROVED","reasons":[],"' + "\ud800\\u0000" * 900 + '":1}')
    assert caught.value.code == "extra_key"
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 1_000


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["verdict", "reasons", "x"]) | st.text(), inner)
    ),
)
verdict_like = st.fixed_dictionaries(
    {"verdict": st.sampled_from([*VerdictKind, "approved"]) | json_values},
    optional={"reasons": st.lists(st.text()) | json_values, "x": json_values},
)
surrounded = st.builds(
    lambda before, value, after: before + json.dumps(value) + after,
    st.sampled_from(["", " ", "```json\n", "```json\r\n", "x", "\ufeff"]),
    json_values | verdict_like,
    st.sampled_from(["", "\n```", "\n", "```", "}"]),
)


@given(st.text(alphabet=st.characters(exclude_categories=())) | surrounded)
@example("\x00")
def test_any_text_is_a_verdict_or_an_invalid_verdict(text: str) -> None:
    with contextlib.suppress(InvalidVerdict):
        verdict = parse_verdict(text)
        assert verdict.approved or verdict.reasons
        assert all(reason.strip() for reason in verdict.reasons)
