"""What happens once before the children start: tables and the first admin, done as the workers' user."""

import os
import signal
import subprocess
import sys

from controller.environment import ROOT
from controller.up.accounts import Account, UpError
from controller.up.children import tied_to

LIMIT_S = 600


def manage(account: Account, environment: dict[str, str], *arguments: str) -> str:
    """Run `manage.py …` as that user and return what it printed. Raises UpError with its last words."""
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=ROOT,
            env={**environment, **account.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            umask=0o007,
            preexec_fn=tied_to(os.getpid(), signal.SIGKILL),
            **account.popen(),  # type: ignore[call-overload]
        )
    except subprocess.TimeoutExpired:
        raise UpError(f"`manage.py {arguments[0]}` took longer than {LIMIT_S} s") from None
    if done.returncode:
        raise UpError(f"`manage.py {' '.join(arguments)}` failed:\n{done.stderr.strip()[-2000:]}")
    return str(done.stdout)
