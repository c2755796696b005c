"""The schema registry that Avro records name their schemas in, by the interface that Confluent's has and others copy.

KAFKA_SCHEMA_REGISTRY_URL is its address, KAFKA_SCHEMA_REGISTRY_USERNAME and _PASSWORD say who asks, where it wants to know.
What a number means never changes, so each that is known is asked for once in a process. One that isn't may be registered yet: it
is asked for again after a while. Garbage can name any number, so only so many unknown ones are asked for in that while.
"""

import logging
import math
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from jobs import record
from jobs.errors import RetryError, UsageError

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds until a registry that does not answer counts as away."""

PAUSES = (0.5, 2.0)
"""Seconds before each further attempt."""

FORGET = 60.0
"""Seconds for which a number that the registry does not know is not asked for again."""

MOST_UNKNOWN = 100
"""Unknown numbers that are asked for in this time; then only those that are known are read."""

UNKNOWN = "unknown schema"
NOT_ASKED = "schema not looked up after too many unknown ones"
"""A record with a good schema may be among them: a replay of the dead letters reads it."""

_URL = "KAFKA_SCHEMA_REGISTRY_URL"
_USERNAME = "KAFKA_SCHEMA_REGISTRY_USERNAME"
_PASSWORD = "KAFKA_SCHEMA_REGISTRY_PASSWORD"
_LARGEST = 2**31 - 1
_NO_SUCH_SCHEMA = 40403
_TOO_MANY = 429


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What a number means, as the registry has said."""

    text: str | None
    """The Avro schema; None where it is none that can be used."""
    unfit: str = ""
    """Why not."""


@dataclass(kw_only=True, slots=True)
class _Asked:
    """What this process has learnt from the registries, by address and number."""

    known: dict[tuple[str, int], _Known] = field(default_factory=dict)
    unknown: set[tuple[str, int]] = field(default_factory=set)
    since: float = -math.inf
    """When `unknown` was begun."""


_asked_for = _Asked()


def schema(number: int) -> str:
    """The Avro schema with this number, as text.

    Raises Unfit, with a reason that names no number, where there is none that can be used; RetryError where the registry is away,
    UsageError where the address or the identity is wrong.
    """
    url = _checked(os.environ.get(_URL))
    found = _asked_for.known.get((url, number)) or _looked_up(url, number)
    if found.text is None:
        raise record.Unfit(found.unfit)
    return found.text


def _looked_up(url: str, number: int) -> _Known:
    """What a number means that this process does not know. Raises Unfit where the registry does not know it."""
    asked, key = _asked_for, (url, number)
    if time.monotonic() - asked.since > FORGET:
        asked.unknown.clear()
        asked.since = time.monotonic()
    # Garbage in a record's first bytes names numbers that no registry gives.
    if number > _LARGEST or key in asked.unknown:
        raise record.Unfit(UNKNOWN)
    if len(asked.unknown) >= MOST_UNKNOWN:
        raise record.Unfit(NOT_ASKED)
    found = _fetched(url, number)
    if found is None:
        asked.unknown.add(key)
        raise record.Unfit(UNKNOWN)
    asked.known[key] = found
    return found


@lru_cache(maxsize=1)
def _checked(url: str | None) -> str:
    if not url:
        raise UsageError(f"{_URL} is not set: it names the schema registry that Avro records refer to, as http://host:port.")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{_URL} is no address: it begins with http:// or https:// and a host, for example http://host:8081.")
    if parts.username or parts.password:
        raise UsageError(
            f"{_URL} holds a user or a password: set {_USERNAME} and {_PASSWORD} for them, and only the address here."
        )
    return url.rstrip("/")


def _fetched(url: str, number: int) -> _Known | None:
    reply = _asked(f"{url}/schemas/ids/{number}", url)
    if reply.status_code in (401, 403):
        raise UsageError(
            f"the schema registry {url} refused ({reply.status_code}): check {_USERNAME} and {_PASSWORD}, and the user's rights."
        )
    told = _json(reply)
    if reply.status_code == httpx.codes.NOT_FOUND and told.get("error_code") == _NO_SUCH_SCHEMA:
        return None
    if reply.status_code != httpx.codes.OK or not isinstance(told.get("schema"), str):
        raise UsageError(
            f"{_URL} is {url}, which answers {reply.status_code} and no schema: "
            "it must be the address of a registry's Confluent interface, with its path where it has one."
        )
    kind = told.get("schemaType") or "AVRO"
    if kind != "AVRO" or told.get("references"):
        unfit = "the schema is no Avro" if kind != "AVRO" else "the schema is split over references"
        log.warning("schema %d of %s can't be used: %s (%s)", number, url, unfit, kind)
        return _Known(text=None, unfit=unfit)
    log.info("schema %d from %s", number, url)
    return _Known(text=str(told["schema"]))


def _asked(address: str, url: str) -> httpx.Response:
    """The registry's answer, asked for again while it fails."""
    username = os.environ.get(_USERNAME)
    auth = httpx.BasicAuth(username, os.environ.get(_PASSWORD, "")) if username else None
    accept = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    for pause in (*PAUSES, None):
        try:
            reply = httpx.get(address, auth=auth, headers=accept, timeout=PATIENCE)
        except httpx.TransportError as failure:
            trouble = f"{type(failure).__name__}: {failure}"
        else:
            if reply.status_code < httpx.codes.INTERNAL_SERVER_ERROR and reply.status_code != _TOO_MANY:
                return reply
            trouble = f"status {reply.status_code}"
        if pause is not None:
            time.sleep(pause)
    raise RetryError(f"the schema registry {url} does not answer ({trouble}). Is it up? Try again.")


def _json(reply: httpx.Response) -> dict[str, Any]:
    try:
        told = reply.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
