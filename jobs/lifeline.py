"""A child that ends with its parent, also when the parent was killed and could not say so."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def hold(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends (prctl(2), Linux). Call it before slow imports."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
