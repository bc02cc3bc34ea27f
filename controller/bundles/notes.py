"""Sentences of people and hooks in a bundle: only what a word surely says becomes a fact, the rest stays text."""

import re

from controller.bundles.fields import BundleError, Fields
from controller.bundles.gather import Gathered
from controller.slurm import hostlist

# A host name in a sentence: letters, then a number or a bracketed list (`gn48`, `gn[50-52]`, `dgx-a100-07`).
HOSTS = re.compile(r"\b[A-Za-z][A-Za-z0-9-]*?(?:\[[0-9,-]+\]|\d+)(?![A-Za-z0-9\[-])")
# Words that look like hosts and are none.
NOT_HOSTS = re.compile(r"(?i)^(gpu|rank|step|xid|sxid|job|cuda|nccl|fp|bf|h|a|v|b|int|epoch|shard|option)-?\d+$")
STEP = re.compile(r"\bsteps?\s+(\d+)(?:\s*(?:\.\.|-|to)\s*(\d+))?")
XID = re.compile(r"(?i)\bxid\D{0,3}(\d{1,3})\b")
ECC = re.compile(r"(?i)\buncorrect\w*\s+(?:\w+\s+)?ecc|\becc\b.{0,20}\b(?:error|uncorrect)|double.bit|\bDBE\b")
NO = re.compile(r"(?i)\b(?:no|not|never|without|none|neither|zero)\b|n't\b")
NAN = re.compile(r"(?i)\bnans?\b|\binf(?:inity|inite)?\b|not finite|non-finite")
GOES_ON = re.compile(
    r"(?i)\b(?:continue[sd]?|normal(?:ly)?|goes on|went on|still (?:training|running)|healthy|unaffected)\b"
)
STOPS = re.compile(
    r"(?i)\b(?:stop(?:s|ped)?|hang(?:s)?|hung|stall(?:s|ed)?|died|crash(?:es|ed)?|abort(?:s|ed)?|slow(?:s|er)?)\b"
)
WELL = re.compile(
    r"(?i)\b(?:initiali[sz]ed|ok|okay|fine|healthy|clean|work(?:s|ed|ing)?|see|saw|succe\w+|pass(?:ed)?)\b"
)
ILL = re.compile(r"(?i)\b(?:same|fail(?:s|ed|ure)?|also|too|error|broken|no cuda)\b")
COMPLETE = re.compile(
    r"(?i)\b(?:run|training|job)\b.{0,20}\b(?:complete[d]?|finished|done)\b|\b(?:complete|finished)\b"
)


def hosts_in(text: str) -> tuple[str, ...]:
    """Node names in a sentence, host lists expanded."""
    names: list[str] = []
    for match in HOSTS.finditer(text):
        if NOT_HOSTS.match(match[0]):
            continue
        try:
            names += hostlist.expand(match[0])
        except ValueError:
            continue
    return tuple(dict.fromkeys(names))


def still_training(bundle: Fields) -> bool:
    """`heartbeats`: what was seen of the job after the signs."""
    text = bundle.text("heartbeats")
    return bool(GOES_ON.search(text)) and not STOPS.search(text) and not NO.search(text)


def equals(bundle: Fields) -> tuple[frozenset[str], bool]:
    """`other_nodes`: the equals that did the same without fault, and whether they had the same fault."""
    text = bundle.text("other_nodes")
    alike = bool(ILL.search(text)) and not re.search(r"(?i)\b(?:no|without)\s+(?:\w+\s+)?(?:error|fail)", text)
    if alike or not (WELL.search(text) or NO.search(text)):
        return frozenset(), alike
    return frozenset(hosts_in(text)), False


def hook(bundle: Fields) -> tuple[bool, int | None]:
    """`hook.reported`: whether the run said that it is complete, and its last step."""
    value = bundle.get("hook")
    text = value if isinstance(value, str) else bundle.inner("hook").text("reported")
    steps = [int(found[2] or found[1]) for found in STEP.finditer(text)]
    return bool(COMPLETE.search(text)) and not NO.search(text) and "incomplete" not in text, steps[
        -1
    ] if steps else None


def sentences(bundle: Fields, gathered: Gathered) -> None:
    """`evidence`: observations in words. A sentence that denies something is kept as text only."""
    for text in bundle.lines("evidence"):
        nodes = hosts_in(text)
        node = nodes[0] if len(nodes) == 1 else None
        if NO.search(text):
            continue
        if found := XID.search(text):
            gathered.note(f"xid.{found[1]}", text, "kernel", node, number=int(found[1]))
        elif ECC.search(text):
            gathered.note("gpu.ecc_uncorrected", text, "kernel", node)
        elif NAN.search(text):
            step = STEP.search(text)
            gathered.note("loss.not_finite", text, "progress", node, **({"step": int(step[1])} if step else {}))


def whom_it_follows(bundle: Fields) -> str:
    """Whether the observations say that the fault follows the `node`, the `software`, or nobody can tell (`""`)."""
    text = "\n".join(bundle.lines("evidence")).lower()
    software = re.search(
        r"(option|flag|version|release|kernel|setting|compile|precision|library)\b.*\b(on|off|again|back)\b", text
    )
    repaired = re.search(r"(replaced|repaired|other node|another node|different node|good hardware|new node)", text)
    returns = re.search(
        r"\bnans?\b[^\n]*\b(return|again|also|still|reproduc)\w*|\breproduc\w+[^\n]*\b(good|other|healthy)", text
    )
    if software and repaired and returns:
        return "software"
    if re.search(r"follows the (node|gpu|card|board|machine)|only (?:ever )?on (?:this|that|the same|[a-z]+\d+)", text):
        return "node"
    return "node" if _only_there(bundle.lines("evidence")) else ""


def _only_there(lines: list[str]) -> bool:
    """Twice or more on one and the same host, while another host was clean, and nobody changed the software."""
    ill = [set(hosts_in(line)) for line in lines if NAN.search(line) and not NO.search(line)]
    well = {host for line in lines if WELL.search(line) and not NAN.search(line) for host in hosts_in(line)}
    changed = any(
        re.search(r"(?i)\b(?:option|flag|version|release|setting|compile|precision)\b", line) for line in lines
    )
    named = {host for hosts in ill for host in hosts}
    return len(ill) > 1 and len(named) == 1 and all(ill) and bool(well - named) and not changed


def unreadable(bundle: Fields, key: str) -> str:
    """`dmesg` given as a sentence: why the kernel log could not be read."""
    value = bundle.get(key)
    if isinstance(value, str) and "\n" not in value:
        return value
    if value is not None and not isinstance(value, dict | list | str):
        raise BundleError(bundle.path(key), "expected lines by node, or a sentence that says why there are none")
    return ""
