"""No secret in a message, a log or a report: what must not be shown is replaced by `***`.

`mask` knows the secrets of this process, which are in its environment. `mask_fields` knows none, and goes by what the text looks
like: it serves samples of records that nobody could read.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HIDDEN = "***"

SHOWN = 200
"""Characters of a record that a sample shows."""

_SECRET_NAME = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|KEY(?!.*_ID$)|^KAFKA_CLIENT_SASL_(?!MECHANISMS?$|METHOD$)"
)
_POINTER_NAME = re.compile(r"_(FILE|PATH|LOCATION|DIR)$")
"""A file's name is no secret, and whoever reads a message needs it."""

_NO_SECRET = frozenset(("true", "false", "none", "null"))
_SHORTEST = 4
_LONG_LINE = 16
"""Lines of a secret, such as a key's text, are hidden one by one from this length on."""

_URL_PASSWORD = re.compile(r"(://[^/\s:@'\"]*:)[^/\s@'\"]+@")
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(-----END \1-----|\Z)", re.DOTALL)


def mask(text: str) -> str:
    """The text without the secrets of the environment, passwords in URLs and private keys."""
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    # The longest first: one secret may hold another.
    for secret in sorted(set(_forms()), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)


def mask_all(value: Any) -> Any:
    """The value with every text in it masked, keys too. Numbers stay, or what holds them would be no JSON any more."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask_all(key): mask_all(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [mask_all(held) for held in value]
    return value


class Masked(logging.Formatter):
    """A log's format that shows no secret, in tracebacks neither."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, masked."""
        return mask(super().format(record))


def log_to_stderr() -> None:
    """What a process's log looks like. Where somebody has set one up already, as a test run does, that one stays."""
    handler = logging.StreamHandler()
    handler.setFormatter(Masked("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _forms() -> Iterator[str]:
    """The secrets, each as it is and as Python, JSON and URLs write it."""
    for secret in _secrets():
        for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe="")):
            if len(form) >= _SHORTEST and form.lower() not in _NO_SECRET:
                yield form


def _secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and not _POINTER_NAME.search(name):
            yield value
            yield from (line for line in value.splitlines() if len(line) >= _LONG_LINE)
        elif "://" in value:
            # A list of addresses, or one whose password has a comma.
            for address in (value, *value.split(",")):
                try:
                    parts = urlsplit(address.strip())
                    password = parts.password or ""
                except ValueError:
                    continue
                yield from (password, unquote(password))
                yield from (held for key, held in parse_qsl(parts.query) if _SECRET_NAME.search(key.upper()))


_WORDS = r"password|passwd|passphrase|secret|token|authorization|api[_-]?key|credential|card|iban|ssn|(?<![a-z])pin(?![a-z])"
_FIELD = re.compile(
    rf"""(?ix)
    ( ["'] [^"'\n]{{0,80}}? (?:{_WORDS}) [^"'\n]{{0,80}}? (?:["']|$) \s* [:=] \s*
    | \b [\w.-]{{0,80}}? (?:{_WORDS}) [\w.-]{{0,80}} \s* [:=] \s* )
    ( "(?:[^"\\]|\\.)*(?:"|\\?$) | '(?:[^'\\]|\\.)*(?:'|\\?$) | \[[^\]]*(?:\]|$) | \{{[^}}]*(?:\}}|$) | [^,;&}}\]\n]+ )"""
)
"""A field whose name tells of a secret, and its value: a text, a list, an object or a word; each may be cut off by the end."""
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{4,}")
_ADDRESS = re.compile(r"([\w+-])[\w.%+-]*@([\w-]+(?:\.[\w-]+)+)")
_DIGITS = re.compile(r"\d(?:[ -]?\d){11,}")


def mask_fields(raw: bytes | None) -> str:
    """A readable sample of a record that could not be read, of at most `SHOWN` characters, without what looks secret.

    Goes by patterns, since the record may be broken anywhere: a help for whoever looks at it, no proof that nothing is left.
    """
    if raw is None:
        return ""
    # Far more than is shown, and not all of a record of megabytes; what is cut here is not shown.
    text = raw[: 8 * SHOWN].decode(errors="replace")
    text = "".join(letter if letter.isprintable() else "·" for letter in text.replace("\r", " ").replace("\n", " "))
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _FIELD.sub(lambda found: found.group(1) + (f'"{HIDDEN}"' if found.group(2)[0] in "\"'[{" else HIDDEN), text)
    text = _ADDRESS.sub(rf"\1{HIDDEN}@\2", text)
    text = mask(_DIGITS.sub(HIDDEN, text))
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
