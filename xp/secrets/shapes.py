"""Detection of secrets: by words in a variable's name, and by a value's shape whatever its name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

MIN_LENGTH: Final = 6
"""Length from which values are masked; masking `1` or `abc` everywhere would make a log unreadable."""

_WORDS: Final = re.compile(
    r"(?:[A-Z0-9]*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|CREDENTIALS?|CREDS"
    r"|(?:API|ACCESS|SECRET|AUTH|PRIVATE|PRIV|SIGNING|ENCRYPTION|MASTER|DEPLOY|SERVICE|ACCOUNT|SSH|PASS)KEYS?)"
    r"|(?:PG|DB|SSH|SUDO|MYSQL|REDIS|SMTP|MAIL|FTP|USER|ROOT|ADMIN)?(?:PASS|PWD|PW)"
    r"|KEYS?|PAT|CRED|AUTH|AUTHORIZATION|JWT|COOKIE|BEARER|DSN|SALT|WEBHOOKS?)[0-9]*"
)
"""Words that mark a name, which is split at underscores, as a secret's."""
_TOKENS: Final = re.compile(r"[A-Z0-9]*TOKENS[0-9]*")
_COUNTS: Final = re.compile(
    r"MAX|MIN|N|NUM|NUMBER|TOTAL|COUNT|LIMIT|BUDGET|SIZE|LENGTH|RATIO|RATE|PER|NEW|EXTRA|RESERVED|CACHED|BATCH|BATCHED"
    r"|CHUNK|CHUNKED|DISPATCH|DECODE|PREFILL|PREFILLED|INPUT|OUTPUT|PROMPT|COMPLETION|RESPONSE|REPLY|CONTEXT|GENERATED"
    r"|THINKING|REASONING|DRAFT|SPECULATIVE|SPECIAL|STOP|PAD|PADDED|ADDED|VISION|IMAGE|TOP|LOG|PRINT|SKIP|IGNORE"
)
"""Words by which `TOKENS` of a name are a model's (`MAX_TOKENS`)."""
_PLACES: Final = re.compile(r"FILE|PATH|DIR|DIRECTORY|HOME|SOCK|SOCKET|MODE|TIMEOUT|TYPE|METHOD")
"""Last words of names whose value is never a secret (`SSH_AUTH_SOCK`, `RAY_AUTH_MODE`)."""
_NAMES: Final = frozenset({"PWD", "OLDPWD", "XP_PASS_ENV"})
_SWITCHES: Final = re.compile(r"true|false|yes|none|null|auto|always|never|default|enabled|disabled", re.IGNORECASE)

SHAPE: Final = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|rk_live_[A-Za-z0-9]{16,}|sk_live_[A-Za-z0-9]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|(?:ak|as)-[A-Za-z0-9]{22}(?![A-Za-z0-9])|wandb_v1_[A-Za-z0-9_]{20,}|dop_v1_[0-9a-f]{60,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r")"
)
"""Tokens with a known prefix, which distinguishes them from hashes and ids."""
URL_PASSWORD: Final = re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)")
"""`user:password` of a URL."""
PREFIXES: Final = (
    *("sk-", "rk_live_", "sk_live_", "github_pat_", "glpat-", "hf_", "npm_", "pypi-", "AKIA", "ASIA", "AIza", "SG."),
    *(f"gh{letter}_" for letter in "opsur"),
    *(f"xox{letter}-" for letter in "abeoprs"),
    *("ak-", "as-", "wandb_v1_", "dop_v1_", "eyJ"),
)
"""Beginnings of the tokens of `SHAPE`."""
_LONGEST_PREFIX: Final = max(map(len, PREFIXES))
MAX_TOKEN: Final = 16 * 1024
"""Number of characters at the end of a text that are searched for the beginning of a token."""
_LAST_RUN: Final = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+\Z")
_LAST_URL: Final = re.compile(r":(?:/(?:/[^\s/@'\"]*)?)?\Z")
_KEY_BLOCK: Final = "PRIVATE KEY-----"
_WORDLIKE: Final = re.compile(r"(?:sk|pypi|ak|as)-|hf_")
"""Prefixes that names have too (`sk-learn-...`, `hf_AutoModelForCausalLM`)."""
_RUN: Final = re.compile(r"[A-Za-z0-9]{16,}")
_LONG_RUN: Final = 30
"""Length from which a run of letters alone is random, if it has capital and small ones."""


def unfinished_token(text: str) -> int:
    """The place from which a text may be the beginning of a token or of a URL's password; its length if it is not."""
    first = max(0, len(text) - MAX_TOKEN)
    starts = [len(text)]
    if (url := _LAST_URL.search(text, first)) is not None:
        starts.append(url.start())
    if (run := _LAST_RUN.search(text, first)) is not None:
        starts += (at for at in (run.start(), *_after_dots(run)) if _may_begin(text, at))
    return min(starts)


def _after_dots(run: re.Match[str]) -> list[int]:
    return [run.start() + number + 1 for number, character in enumerate(run[0][:-1]) if character == "."]


def _may_begin(text: str, at: int) -> bool:
    rest = text[at : at + _LONGEST_PREFIX + 1]
    return rest.startswith(PREFIXES) or any(prefix.startswith(rest) for prefix in PREFIXES)


def looks_like_secret(name: str) -> bool:
    """Returns whether a variable's name shows that its value is secret."""
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    if name.upper() in _NAMES or not words or _PLACES.fullmatch(words[-1]):
        return False
    return any(_WORDS.fullmatch(word) for word in words) or _ends_in_tokens(words)


def _ends_in_tokens(words: list[str]) -> bool:
    return _TOKENS.fullmatch(words[-1]) is not None and not any(_COUNTS.fullmatch(word) for word in words)


def looks_like_secret_value(value: str) -> bool:
    """Returns whether a value is secret by its shape alone."""
    return bool(SHAPE.search(value) or URL_PASSWORD.search(value)) or _KEY_BLOCK in value


def holds_token(text: str) -> bool:
    """Returns whether a text has a token in it: stricter than `SHAPE`, since it is refused and not only masked."""
    return _KEY_BLOCK in text or any(_is_random(match[0]) for match in SHAPE.finditer(text))


def _is_random(token: str) -> bool:
    prefix = _WORDLIKE.match(token)
    if prefix is None:
        return True
    runs = _RUN.findall(token[prefix.end() :])
    is_of_hub = prefix[0] == "hf_"
    return any(
        len(run) >= _LONG_RUN and not run.islower() and not run.isupper()
        if is_of_hub or run.isalpha()
        else not run.isdecimal()
        for run in runs
    )


def telling(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that look like secrets by name or value, declared or not."""
    return {name: value for name, value in environ.items() if _is_telling(name, value)}


def parts_of(value: str) -> tuple[str, ...]:
    """Parts of a secret value that are masked: the whole value, and a URL's password alone."""
    passwords = [match.group().partition(":")[2] for match in URL_PASSWORD.finditer(value)]
    return (value, *passwords)


def _is_telling(name: str, value: str) -> bool:
    if looks_like_secret_value(value):
        return True
    if not looks_like_secret(name) or len(value.strip()) < MIN_LENGTH or _SWITCHES.fullmatch(value.strip()):
        return False
    return not _is_place(value)


def _is_place(value: str) -> bool:
    """Returns whether a value is a path. A base64 text may begin with a slash too, but below no existing directory."""
    top = value.split("/", 2)[1] if value.startswith("/") else ""
    return value.startswith("~/") or bool(top and os.path.isdir(f"/{top}"))
