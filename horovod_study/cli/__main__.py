"""`python -m horovod_study.cli VERB`, the same as `horovod-study VERB`."""

import sys

from horovod_study.cli import main

if __name__ == "__main__":
    sys.exit(main())
