"""What trainers print: that they have finished, and how far they are."""

import re

from worker_hooks.signs.found import Found, short, sign, whole
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign

_FINISHED = re.compile(
    r"`?Trainer\.fit`? stopped: `?max_(?:epochs|steps|time)=.*reached|"
    r"Training completed\. Do not forget to share your model|\[after training is done\]|"
    r"['\"]train_runtime['\"]: |^(?:\S{1,40}[:|] ?)?(?:Training|Run) (?:is |has )?(?:finished|"
    r"complete[d]?|done)(?: successfully)?[.!]*$"
)
_VALUE = r"(?P<{}>[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|NaN|NAN|inf|Inf|INF|Infinity))\b"
_LOSS = re.compile(
    r"(?:^|[\s,{|(])['\"]?(?:lm |train(?:ing)?[ _/])?loss['\"]?[ \t]*[:=]?[ \t]*" + _VALUE.format("loss")
)
_STEP = re.compile(
    r"(?:^|[\s,{|(\[])['\"]?(?:global_?step|train_step|step|iteration|iter|it)s?['\"]?[ "
    r"\t]*[:=#]?[ \t]*\[?(?P<step>\d{1,12})\b",
    re.IGNORECASE,
)
_SECONDS = (
    (
        re.compile(r"(?:per iteration|iter(?:ation)?[ _]time|step[ _]time|time)[ ]?\(ms\) ?[:=] ?(\d+(?:\.\d+)?)"),
        1000.0,
    ),
    (re.compile(r"(?:iter(?:ation)?[ _]time|step[ _]time|time)[ ]?[:=]? ?(\d+(?:\.\d+)?) ?ms\b"), 1000.0),
    (re.compile(r"(?:iter(?:ation)?[ _]time|step[ _]time|time)[ ]?(?:\(s\))? ?[:=]? ?(\d+(?:\.\d+)?) ?s?\b"), 1.0),
    (re.compile(r"\b(\d+(?:\.\d+)?) ?s/(?:it|step|iter)\b"), 1.0),
)
_NAN_ITERATIONS = re.compile(r"number of nan iterations: +(?P<count>[1-9]\d*)")
_BAR = re.compile(
    r"(?:^|[ :])(?P<percent>\d{1,3})%\|.{0,200}?\| *(?P<done>\d+(?:\.\d+)?[kMGT]?)/(?P<total>"
    r"\d+(?:\.\d+)?[kMGT]?) \[(?P<spent>[\d:]+)<(?P<left>[\d:?]+)"
)
_BAR_RANK = re.compile(r"\brank[ :=]*(\d{1,7})\b", re.IGNORECASE)


class Finished:
    triggers: tuple[bytes, ...] = (
        b"rainer.fit",
        b"train_runtime",
        b"after training is done",
        b"raining complete",
        b"raining finished",
        b"raining is ",
    )

    def read(self, line: Line) -> list[Sign]:
        if not _FINISHED.search(line.text):
            return []
        return [sign(line, Found("trainer.finished", {"text": short(line.text)}))]

    def close(self) -> list[Sign]:
        return []


class Progress:
    """Steps, losses and progress bars. Such lines may be most of a log: of `frequent` literals the engine gives only
    the first and last lines of each piece that it reads."""

    triggers: tuple[bytes, ...] = ()
    frequent = (b"loss", b"%|")

    def read(self, line: Line) -> list[Sign]:
        return [sign(line, found) for found in (_steps(line.text) or _bar(line.text))]

    def close(self) -> list[Sign]:
        return []


def _steps(text: str) -> list[Found]:
    loss, step = _LOSS.search(text), _STEP.search(text)
    if loss is None or "rror" in text:
        return []
    attrs: dict[str, Scalar] = {}
    if step and (number := whole(step["step"])) is not None:
        attrs["step"] = number
    value = float(loss["loss"])
    nan = _NAN_ITERATIONS.search(text)
    if value != value or value in (float("inf"), float("-inf")) or nan:
        return [Found("loss.not_finite", {**attrs, "name": "loss"})]
    if "step" not in attrs and not text.lstrip().startswith("{"):
        return []
    seconds = _seconds(text)
    return [Found("progress.step", {**attrs, "loss": value, **({} if seconds is None else {"seconds": seconds})})]


def _seconds(text: str) -> float | None:
    for form, per_second in _SECONDS:
        if match := form.search(text):
            return float(match[1]) / per_second
    return None


def _bar(text: str) -> list[Found]:
    match = _BAR.search(text) if "%|" in text else None
    if match is None:
        return []
    name = text[: match.start()].strip().rstrip(":")
    attrs: dict[str, Scalar] = {"percent": int(match["percent"]), "text": short(name or text)}
    if (left := _clock(match["left"])) is not None:
        attrs["remaining_s"] = left
    rank = _BAR_RANK.search(name)
    return [Found("progress.bar", attrs, int(rank[1]) if rank else None)]


def _clock(text: str) -> int | None:
    """`1:02:03`, `56:10`; a bar that knows nothing prints `?`."""
    parts = text.split(":")
    if not all(part.isdigit() and len(part) < 7 for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total
