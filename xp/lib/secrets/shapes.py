"""Detection of secrets: by words in a variable's name, and by a value's shape whatever its name."""

from __future__ import annotations

import os
import re
from typing import Final

from xp.lib.text import word_list

MIN_LENGTH: Final = 6
"""Length from which values are masked; masking `1` or `abc` everywhere would make a log unreadable."""
_NAMES: Final = ("PWD", "OLDPWD", "XP_PASS_ENV")
TOKENS: Final = {
    "sk-": "[A-Za-z0-9_-]{16,}",
    **dict.fromkeys(("rk_live_", "sk_live_"), "[A-Za-z0-9]{16,}"),
    **{f"gh{kind}_": "[A-Za-z0-9]{30,}" for kind in "opsur"},
    "github_pat_": "[A-Za-z0-9_]{20,}",
    "glpat-": "[A-Za-z0-9_-]{16,}",
    "hf_": "[A-Za-z0-9]{20,}",
    "npm_": "[A-Za-z0-9]{30,}",
    "pypi-": "[A-Za-z0-9_-]{40,}",
    **{f"xox{kind}-": "[A-Za-z0-9-]{10,}" for kind in "abeoprs"},
    **dict.fromkeys(("AKIA", "ASIA"), "[0-9A-Z]{16}"),
    "AIza": "[0-9A-Za-z_-]{35}",
    "SG.": r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    **dict.fromkeys(("ak-", "as-"), "[A-Za-z0-9]{22}(?![A-Za-z0-9])"),
    "wandb_v1_": "[A-Za-z0-9_]{20,}",
    "dop_v1_": "[0-9a-f]{60,}",
    "eyJ": r"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
}
"""Prefix of a token, which distinguishes it from hashes and ids -> regular expression of the rest."""
SHAPE: Final = re.compile(
    f"(?<![A-Za-z0-9_-])(?:{'|'.join(re.escape(prefix) + rest for prefix, rest in TOKENS.items())})"
)
URL_PASSWORD: Final = re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)")
"""`user:password` of a URL."""
_KEY_BLOCK: Final = "PRIVATE KEY-----"
_COMMON_PREFIX: Final = re.compile(r"(?:sk|pypi|ak|as)-|hf_")
"""Prefixes that names have too (`sk-learn-...`, `hf_AutoModelForCausalLM`)."""
_RUN: Final = re.compile(r"[A-Za-z0-9]{16,}")
_LONG_RUN: Final = 30
"""Length from which a run of letters alone is random, if it has capital and small ones."""


_KEYS: Final = word_list(
    "API ACCESS SECRET AUTH PRIVATE PRIV SIGNING ENCRYPTION MASTER DEPLOY SERVICE ACCOUNT SSH PASS"
)
_ENDINGS: Final = (
    *word_list("""
        TOKEN SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE PASSCODE CREDENTIAL CREDENTIALS CREDS
    """),
    *(f"{kind}KEY{plural}" for kind in _KEYS for plural in ("", "S")),
)
"""Ends of a word that marks a name, which is split at underscores, as a secret's."""
_USERS: Final = ("", *word_list("PG DB SSH SUDO MYSQL REDIS SMTP MAIL FTP USER ROOT ADMIN"))
_WORDS: Final = {
    *word_list("KEY KEYS PAT CRED AUTH AUTHORIZATION JWT COOKIE BEARER DSN SALT WEBHOOK WEBHOOKS"),
    *(f"{user}{word}" for user in _USERS for word in ("PASS", "PWD", "PW")),
}
"""Whole words with the same meaning."""
_COUNTS: Final = frozenset(
    word_list("""
    MAX MIN N NUM NUMBER TOTAL COUNT LIMIT BUDGET SIZE LENGTH RATIO RATE PER NEW EXTRA RESERVED CACHED
    BATCH BATCHED CHUNK CHUNKED DISPATCH DECODE PREFILL PREFILLED INPUT OUTPUT PROMPT COMPLETION RESPONSE
    REPLY CONTEXT GENERATED THINKING REASONING DRAFT SPECULATIVE SPECIAL STOP PAD PADDED ADDED VISION
    IMAGE TOP LOG PRINT SKIP IGNORE
""")
)
"""Words by which `TOKENS` of a name are a model's (`MAX_TOKENS`)."""
_PLACES: Final = word_list("FILE PATH DIR DIRECTORY HOME SOCK SOCKET MODE TIMEOUT TYPE METHOD")
"""Last words of names whose value is never a secret (`SSH_AUTH_SOCK`, `RAY_AUTH_MODE`)."""
_SWITCHES: Final = word_list("true false yes none null auto always never default enabled disabled")


def looks_like_secret(name: str) -> bool:
    """Returns whether a variable's name shows that its value is secret."""
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    if name.upper() in _NAMES or not words or words[-1] in _PLACES:
        return False
    bare = [word.rstrip("0123456789") for word in words]
    is_token = bare[-1].endswith("TOKENS") and _COUNTS.isdisjoint(words)
    return is_token or any(word in _WORDS or word.endswith(_ENDINGS) for word in bare)


def looks_like_secret_value(value: str) -> bool:
    """Returns whether a value is secret by its shape alone."""
    return bool(SHAPE.search(value) or URL_PASSWORD.search(value)) or _KEY_BLOCK in value


def is_secret_variable(name: str, value: str) -> bool:
    """Returns whether a variable, declared or not, looks like a secret by its value or its name."""
    if looks_like_secret_value(value):
        return True
    text = value.strip()
    is_long = len(text) >= MIN_LENGTH and text.lower() not in _SWITCHES
    return is_long and looks_like_secret(name) and not _is_path(value)


def _is_path(value: str) -> bool:
    """Returns whether a value is a path. A base64 text may begin with a slash too, but below no existing directory."""
    if value.startswith("/"):
        top = value.split("/", 2)[1]
    else:
        top = ""
    return value.startswith("~/") or bool(top and os.path.isdir(f"/{top}"))


def masked_parts(value: str) -> tuple[str, ...]:
    """Parts of a secret value that are masked: the whole value, and a URL's password alone."""
    passwords = [match.group().partition(":")[2] for match in URL_PASSWORD.finditer(value)]
    return (value, *passwords)


def holds_token(text: str) -> bool:
    """Returns whether a text has a token in it: stricter than `SHAPE`, since it is refused and not only masked."""
    return _KEY_BLOCK in text or any(_is_random(match[0]) for match in SHAPE.finditer(text))


def _is_random(token: str) -> bool:
    prefix = _COMMON_PREFIX.match(token)
    if prefix is None:
        return True
    for run in _RUN.findall(token[prefix.end() :]):
        if prefix[0] == "hf_" or run.isalpha():
            if len(run) >= _LONG_RUN and not run.islower() and not run.isupper():
                return True
        elif not run.isdecimal():
            return True
    return False
