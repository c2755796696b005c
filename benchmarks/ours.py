"""Penstock's ingest as one process: `python -m benchmarks.ours SOURCE ENGINE`, with the source pickled, in base64.

Prints what it took itself, as JSON. With the engine `spark`, its session is opened before the clock starts.
"""

import base64
import json
import pickle
import sys
import time
from argparse import Namespace
from contextlib import ExitStack

from jobs.command import Job
from jobs.ingest import stage
from jobs.secrets import log_to_stderr


def main() -> None:
    """Ingest all that the source's topic holds."""
    # As the command does.
    log_to_stderr()
    source, engine = pickle.loads(base64.b64decode(sys.argv[1])), sys.argv[2]
    with ExitStack() as stack:
        began = time.monotonic()
        if engine == "spark":
            from jobs.spark import session

            stack.enter_context(session("benchmark"))
        opened = time.monotonic()
        job = Job(command="ingest", options=Namespace(json=True, engine=engine), run_id="benchmark", source=(source,))
        stage.run(job)
        done = time.monotonic()
    print(json.dumps({"session": opened - began, "work": done - opened}))


if __name__ == "__main__":
    main()
