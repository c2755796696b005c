"""Which Java runs the broker and Spark: that of JAVA_HOME, else the one on the path.

Only the standard library is imported: the set-up asks here too, before anything is installed.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from jobs.errors import UsageError

VERSIONS = (17, 21)
_REMEDY = "install Java 17 or 21, or set JAVA_HOME to one"


def java() -> str:
    """The program `java`. Raises UsageError where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "There is no java on the PATH"
        raise UsageError(f"{where}, and Kafka and Spark need one: {_REMEDY}.")
    return found


def check() -> None:
    """Raises UsageError where Java is missing, or is none that Spark 4.2 and Kafka 4.2 both run on."""
    program = java()
    told = subprocess.run([program, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if version is None:
        raise UsageError(f"{program} doesn't tell its version, so it is hardly a Java, and Kafka and Spark need one: {_REMEDY}.")
    if int(version[1]) not in VERSIONS:
        raise UsageError(f"{program} is Java {version[1]}, and Spark and Kafka need 17 or 21: {_REMEDY}.")
