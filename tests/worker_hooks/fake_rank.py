"""A rank for agent tests: real process, slot and event file, no torch.

`fake_rank.py '{"steps": 20, "period": 0.02, "end": "exit:0", "ignore_term": false}'`; `end` is `exit:CODE`,
`signal:NUMBER` or `hang`; `"only": RANK` makes every other rank hang instead.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from worker_hooks.protocol.slots import SlotWriter


def main() -> None:
    plan = {"steps": 20, "period": 0.02, "end": "exit:0", "ignore_term": False, "only": None, **json.loads(sys.argv[1])}
    rank, folder = int(os.environ["RANK"]), Path(os.environ["RELUME_RUN_DIR"])
    if plan["ignore_term"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"rank {rank} begins", file=sys.stderr, flush=True)
    slot = SlotWriter(folder / "slots", int(os.environ["LOCAL_RANK"]))
    slot.phase("training")
    with (folder / f"events-{rank}.jsonl").open("a", buffering=1, encoding="utf-8") as events:
        for step in range(1, plan["steps"] + 1):
            time.sleep(plan["period"])
            slot.step(step)
            point = {"rank": rank, "name": "loss", "steps": [step], "times": [time.time()], "values": [1.0 / step]}
            events.write(json.dumps({"kind": "metrics", "at": time.time(), **point}) + "\n")
            if asked_to_stop(folder):
                return
    end(plan, rank, folder)


def end(plan: dict, rank: int, folder: Path) -> None:
    kind, _, number = plan["end"].partition(":")
    if plan["only"] not in (None, rank) or kind == "hang":
        while not asked_to_stop(folder):
            time.sleep(0.02)
    elif kind == "signal":
        os.kill(os.getpid(), int(number))
        time.sleep(60)
    else:
        sys.exit(int(number))


def asked_to_stop(folder: Path) -> bool:
    return json.loads((folder / "control.json").read_text(encoding="utf-8"))["stop"] is not None


main()
