"""Which Java runs the broker: that of JAVA_HOME, else the one on the path, as Spark chooses too."""

import os
import shutil
from pathlib import Path

from jobs.errors import UsageError


def java() -> str:
    """The program `java`. Raises UsageError where there is none; `make setup` has checked its version."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "There is no java on the PATH"
        raise UsageError(f"{where}: Kafka and Spark need Java 17 or 21. Install one, or set JAVA_HOME to it.")
    return found
