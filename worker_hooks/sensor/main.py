"""`relume-sensor --config FILE`: watches one node until it is told to end."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from worker_hooks.sensor.config import DEFAULT_PATH, ConfigError, read_config
from worker_hooks.sensor.daemon import Sensor, say

EX_CONFIG = 78


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="relume-sensor", description=__doc__)
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH)
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments.config)
    except ConfigError as error:
        say(str(error))
        return EX_CONFIG
    Sensor(config).run()
    sys.stderr.flush()
    os._exit(0)  # a reader that hangs in a driver must not hold up the end


if __name__ == "__main__":
    sys.exit(main())
