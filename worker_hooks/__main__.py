"""`python -m worker_hooks`: the `relume` command of exactly this installation, where no script was installed."""

import sys

from worker_hooks.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
