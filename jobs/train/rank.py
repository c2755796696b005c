"""One rank of a training, started by the stage through torchrun: `torchrun … -m jobs.train.rank FOLDER`.

The folder is that of `jobs.train.plan`. torchrun loses exit codes, so each rank leaves its outcome there too.
"""

import sys
import traceback
from pathlib import Path

from jobs import lifeline
from jobs.secrets import log_to_stderr


def main(folder: Path) -> int:
    """Train, and leave the outcome. Returns the exit code."""
    from jobs.train import ending, process_group
    from jobs.train.fit import train
    from jobs.train.plan import Outcome, Plan

    name = f"rank-{process_group.rank()}"
    try:
        with process_group.joined() as group:
            ending.listen()
            train(Plan.read(folder), folder, group)
    except Exception as failure:
        traceback.print_exc()
        outcome = process_group.outcome(failure)
        outcome.write(folder, name)
        return outcome.code
    Outcome(code=0, message="").write(folder, name)
    return 0


if __name__ == "__main__":
    lifeline.hold()
    log_to_stderr()
    sys.exit(main(Path(sys.argv[1])))
