"""One question over loopback HTTP, for the checks of health."""

import http.client
import urllib.request


def get(url: str, *, timeout: float = 3.0) -> bytes | None:
    """The body of a successful answer, or None while there is none. Past any proxy of the environment: it is our own loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return bytes(answer.read())
    except (OSError, http.client.HTTPException):
        return None
