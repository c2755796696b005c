"""Where a table's log still names the person: as the least or greatest value of a file that is long gone.

No job puts such values there now (see `jobs.lake.ENDS`), but tables that were made before that hold them. That can't be mended
from here, so it is told.
"""

import json

from jobs import store


def count(table_uri: str, column: str, texts: set[str]) -> int:
    """How many commits in the log say one of the texts of a column's ends."""
    found = 0
    for file in store.files(f"{table_uri}/{store.LOG}"):
        if not file.path.endswith(".json"):
            continue
        lines = (store.read(f"{table_uri}/{store.LOG}", file.path) or b"").splitlines()
        found += any(_says(json.loads(line), column, texts) for line in lines if b'"add"' in line)
    return found


def _says(action: dict[str, dict[str, str]], column: str, texts: set[str]) -> bool:
    stats = json.loads(action.get("add", {}).get("stats") or "{}")
    return any(str(stats.get(side, {}).get(column)) in texts for side in ("minValues", "maxValues"))
