"""The job contract's failures: one exception for each exit code that a stage may choose.

A stage raises; `jobs.cli` alone turns what was raised into an exit code, so the mapping has one home. The codes
64, 65, 70 and 75 are those of BSD's sysexits(3). Every message gives the value, the rule and the remedy.
"""

import enum


class Exit(enum.IntEnum):
    """What a job's exit code means to whoever started it."""

    DONE = 0
    USAGE = 64
    DATA = 65
    BUG = 70
    RETRY = 75


class JobError(Exception):
    """A failure that a stage foresees. `exit_code` is what its process ends with."""

    exit_code = Exit.BUG


class UsageError(JobError):
    """The arguments, the environment or a declaration are wrong. The same call can't succeed: no retry."""

    exit_code = Exit.USAGE


class DataError(JobError):
    """The data breaks a rule (lost offsets, a recreated topic, a quality verdict). A person has to decide: no retry."""

    exit_code = Exit.DATA


class RetryError(JobError):
    """A service was away, a day is not closed, or a commit was lost to a neighbour. The same call may succeed later."""

    exit_code = Exit.RETRY
