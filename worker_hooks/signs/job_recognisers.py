"""The recognisers of job logs."""

from worker_hooks.signs.exits import Exits
from worker_hooks.signs.python_errors import PythonErrors
from worker_hooks.signs.reasons import Reasons
from worker_hooks.signs.recogniser import Recogniser
from worker_hooks.signs.slurm_texts import SlurmTexts
from worker_hooks.signs.torchrun import FailureTables
from worker_hooks.signs.trainer import Finished, Progress


def job_recognisers() -> list[Recogniser]:
    """Fresh ones: they remember what they have read. Of one line the specific sign comes before the exception that
    carries it."""
    return [Reasons(), PythonErrors(), FailureTables(), Exits(), SlurmTexts(), Finished(), Progress()]
