"""The redactor: a known value is masked in every usual encoding, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import shlex
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.lib.secrets.redaction import MASK, Redactor

SECRET = "sk-Canary+4711/ü \"quoted\" 'single' $(x)"


@pytest.mark.parametrize(
    "encoded",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(json.dumps({"key": SECRET})),
        repr(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        shlex.quote(SECRET),
        html.escape(SECRET),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
    ],
)
def test_each_encoding_is_masked(encoded: str) -> None:
    text = Redactor([SECRET]).redact(f"before {encoded} after")
    assert MASK in text
    assert "Canary" not in text
    assert encoded not in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert "Canary" not in repr(Redactor([SECRET]))


@given(
    prefix=st.binary(max_size=9),
    suffix=st.binary(max_size=9),
    secret=st.text(min_size=12, max_size=40),
)
def test_base64_of_anything_that_holds_the_value_is_masked(
    prefix: bytes, suffix: bytes, secret: str
) -> None:
    data = secret.encode(errors="replace")
    encoded = base64.b64encode(prefix + data + suffix).decode()
    text = Redactor([data.decode()]).redact(encoded)
    assert MASK in text
    assert len(text.replace(MASK, "")) <= len(encoded) - (len(data) * 8 // 6 - 3)


@given(st.text(max_size=200))
def test_a_text_without_the_value_stays_as_it_is(text: str) -> None:
    assert Redactor(["XPCANARY_0123456789"]).redact(text) == text
    assert Redactor([]).redact(text) == text


def test_a_value_too_short_to_hide_is_left_alone() -> None:
    assert Redactor(["1", "abc", ""]).redact("step 1 of 10: abc") == "step 1 of 10: abc"


def test_each_line_of_a_long_value_is_masked() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
    text = "\n".join(map(Redactor([pem]).redact, pem.splitlines()))
    assert "MIIEv" not in text
    assert "kqhki" not in text


def test_the_longer_of_two_overlapping_values_is_masked_whole() -> None:
    assert (
        Redactor(["secret-1", "secret-1-and-more"]).redact("x secret-1-and-more y") == f"x {MASK} y"
    )


@given(cut=st.integers(1, len(SECRET) - 1), before=st.text(alphabet="xyz \n", max_size=8))
def test_a_texts_end_that_may_begin_a_value_is_held_back(cut: int, before: str) -> None:
    redactor = Redactor([SECRET])
    text = before + SECRET[:cut]
    assert redactor.safe_length(text) <= len(before)


def test_a_text_that_ends_harmlessly_is_held_back_nowhere() -> None:
    assert Redactor([SECRET]).safe_length("step 10: 50%") == len("step 10: 50%")
    assert Redactor([]).safe_length("step 10") == len("step ")
