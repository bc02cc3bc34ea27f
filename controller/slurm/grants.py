"""The exact lines that grant what is missing: for Slurm's database, or for sudo. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.decision import rights
from controller.slurm.building import present

OPERATOR, ADMINISTRATOR = "Operator", "Administrator"
# Measured on 22.05 and 25.11 (docs/admin-rights.md): node updates alone need more than an Operator.
LEVEL = {
    rights.READ_NODES: OPERATOR,
    rights.READ_JOBS: OPERATOR,
    rights.READ_ACCOUNTING: OPERATOR,
    rights.JOBS_OF_OTHERS: OPERATOR,
    rights.RESERVE: OPERATOR,
    rights.UPDATE_NODES: ADMINISTRATOR,
}
_JOB = "[0-9_+]+"
_TEXT = "[^=]+"  # no `=`: else a second change, of another thing, would fit behind it
# What Relume sends for each capability, as sudo's regular expressions (sudo 1.9.10 and later).
COMMANDS = {
    rights.UPDATE_NODES: (f"update NodeName=[A-Za-z0-9._-]+ State=(RESUME|(DRAIN|DOWN) Reason={_TEXT})",),
    rights.JOBS_OF_OTHERS: (
        f"(requeuehold|requeue|hold|release) {_JOB}",
        f"update JobId={_JOB} (ExcNodeList=[^=]*|StartTime=now|ReservationName=[^=]*|Comment={_TEXT})( StartTime=now)?",
    ),
    rights.RESERVE: (
        r"create ReservationName=[A-Za-z0-9._-]+ Nodes=[^=]+ Users=[^=]+ StartTime=now Duration=[0-9]+ Flags=[A-Z_,]+",
        "delete ReservationName=[A-Za-z0-9._-]+",
    ),
}


@dataclass(frozen=True, slots=True)
class Asker:
    """Who lacks something: `user` is whom Slurm sees, `account_known` whether its database knows that user, `login`
    who would call sudo, `scontrol` the command's path, `own_conf` whether SLURM_CONF must get through sudo."""

    user: str
    login: str
    account_known: bool | None
    scontrol: str = "/usr/bin/scontrol"
    own_conf: bool = False
    through_sudo: bool = False


def lines(capability: str, asker: Asker, config: Mapping[str, str]) -> tuple[str, ...]:
    """One way to grant it per entry, the plainest first. Empty where nothing but another Slurm would help."""
    if capability == rights.READ_ACCOUNTING and not keeps_accounting(config):
        return ()
    by_level = sacctmgr(capability, asker) if keeps_accounting(config) else ""
    by_sudo = sudoers(capability, asker, slurm_user(config))
    ordered = (by_sudo, by_level) if asker.through_sudo else (by_level, by_sudo)
    return tuple(line for line in ordered if line)


def sacctmgr(capability: str, asker: Asker) -> str:
    level = LEVEL[capability]
    if asker.account_known is False:  # an account is needed to be in the database at all
        return f"sacctmgr -i add user name={asker.user} account=root AdminLevel={level}"
    return f"sacctmgr -i modify user where name={asker.user} set AdminLevel={level}"


def sudoers(capability: str, asker: Asker, target: str) -> str:
    """What to put into a file of /etc/sudoers.d, and the setting that makes use of it. "" for what is only read."""
    commands = COMMANDS.get(capability)
    if commands is None:
        return ""
    setting = "SLURM_NODE_RUN_AS" if capability == rights.UPDATE_NODES else "SLURM_JOB_RUN_AS"
    allowed = ", ".join(f"{asker.scontrol} ^{command}$" for command in commands)
    keep = f'Defaults!{asker.scontrol} env_keep += "SLURM_CONF"\n' if asker.own_conf else ""
    return f'{keep}{asker.login} ALL=({target}) NOPASSWD: {allowed}\n{setting}="sudo -n -u {target}"'


def keeps_accounting(config: Mapping[str, str]) -> bool:
    return present(config.get("AccountingStorageType")).endswith("slurmdbd")


def slurm_user(config: Mapping[str, str]) -> str:
    """`SlurmUser = slurm(64030)`."""
    return config.get("SlurmUser", "root").partition("(")[0]
