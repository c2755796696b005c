"""What a run over some days would do, and why: nothing is computed, and nothing is spent.

`penstock plan PIPELINE --from D --to D`, by day and stage: done, missing, stale or waiting, with the rows and an estimate of the
seconds from the ledger.
"""

from jobs.command import Command

COMMANDS = (
    Command(
        name="plan",
        help="say what is done, missing, stale and waiting over a range of days, and why; compute nothing",
        target="jobs.plan.stage:run",
        subject="pipeline",
        interval=True,
    ),
)
