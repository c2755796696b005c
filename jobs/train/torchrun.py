"""torchrun, tied to the life of the stage that supervises it: `python -m jobs.train.torchrun` takes torchrun's arguments."""

import sys

from jobs import lifeline

if __name__ == "__main__":
    lifeline.hold()
    from torch.distributed.run import main

    main(sys.argv[1:])
