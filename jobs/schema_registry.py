"""The schema registry that Avro records name their schemas in, by the interface that Confluent's has and others copy.

KAFKA_SCHEMA_REGISTRY_URL is its address, KAFKA_SCHEMA_REGISTRY_USERNAME and _PASSWORD say who asks, where it wants to know.
What a number means never changes, so each is asked for once in a process.
"""

import logging
import os
import time
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from jobs.errors import RetryError, UsageError

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds until a registry that does not answer counts as away."""

PAUSES = (0.5, 2.0)
"""Seconds before each further attempt."""

_URL = "KAFKA_SCHEMA_REGISTRY_URL"
_USERNAME = "KAFKA_SCHEMA_REGISTRY_USERNAME"
_PASSWORD = "KAFKA_SCHEMA_REGISTRY_PASSWORD"
_LARGEST = 2**31 - 1
_NO_SUCH_SCHEMA = 40403
_TOO_MANY = 429


def schema(number: int) -> str | None:
    """The Avro schema with this number, as text; None where the registry has none.

    Raises RetryError where the registry is away, UsageError where the address, the identity or the schema's kind is wrong.
    """
    url = _checked(os.environ.get(_URL))
    # Garbage in a record's first bytes names numbers that no registry gives.
    return _fetched(url, number) if number <= _LARGEST else None


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


@lru_cache(maxsize=4096)
def _fetched(url: str, number: int) -> str | None:
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
        what = f"of kind {kind}" if kind != "AVRO" else "split over references"
        raise UsageError(f"schema {number} of {url} is {what}: only Avro schemas with all types in their own text are read.")
    log.info("schema %d from %s", number, url)
    return str(told["schema"])


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
