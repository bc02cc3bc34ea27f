"""Losses and gradients that are not finite, as training programs say it."""

from worker_hooks.signs.found import Found, first, pattern

_PATTERNS = (
    pattern(
        "loss.not_finite",
        "NaN in local",
        r"(?:[Rr]ank (?P<rank>\d{1,7}).{0,120}?)?(?:found )?NaN in local (?P<name>grad norm|"
        r"forward loss).*?(?:node: (?P<host>[\w.-]+))?$",
    ),
    pattern("loss.not_finite", "nan values", r"returned nan values in its (?P<name>\w+ output)"),
    pattern("loss.not_finite", "inimum loss scale", r"[Mm]inimum (?P<name>loss scale) reached"),
    pattern("loss.not_finite", "loss scale already at minimum", r"Current (?P<name>loss scale) already at minimum"),
    pattern("loss.not_finite", "oss is nan", r"(?P<name>[Ll]oss) is nan"),
    pattern("loss.not_finite", "is nan or inf", r"(?P<name>[Ll]oss) returned in .{0,60} is nan or inf"),
    pattern("loss.not_finite", "on-finite", r"[Nn]on-finite (?P<name>loss|grad\w*)"),
    pattern(
        "loss.not_finite",
        "nan",
        r"Error: .{0,60}(?P<name>[Ll]oss|[Gg]rad\w*(?: norm)?) (?:is|was|became) (?:nan|NaN|inf)",
    ),
    pattern("loss.not_finite", "NaN", r"Error: .{0,60}(?P<name>[Ll]oss|[Gg]rad\w*(?: norm)?) (?:is|was|became) NaN"),
)


def loss_reason(text: str) -> Found | None:
    found = first(_PATTERNS, text)
    return (
        Found(found.code, {k: v for k, v in found.attrs.items() if k != "host"}, found.rank, found.node)
        if found
        else None
    )
