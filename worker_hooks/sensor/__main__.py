import sys

from worker_hooks.sensor.main import main

sys.exit(main())
