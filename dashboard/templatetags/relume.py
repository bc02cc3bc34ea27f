"""What templates print often: icons, states, numbers, times."""

import json
from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard import formats
from dashboard.words import Word

register = template.Library()

register.filter("whole", formats.whole)
register.filter("decimals", formats.decimals)
register.filter("percent", formats.percent)
register.filter("size", formats.size)
register.filter("seconds", formats.seconds)
register.filter("duration", formats.duration)
register.filter("plain", formats.plain)
register.filter("sentence", formats.sentence)


@register.simple_tag
def icon(name: str, tone: str = "") -> SafeString:
    """Decoration only: the word beside it carries the meaning."""
    return format_html('<svg class="i {}" aria-hidden="true"><use href="#i-{}"></use></svg>', tone, name)


@register.simple_tag
def state(word: Word, pill: bool = False) -> SafeString:
    return format_html(
        '<span class="st {}{}">{}{}</span>', "pill " if pill else "", word.tone, icon(word.icon), word.text
    )


@register.simple_tag
def at(when: datetime | None, form: str = "day") -> SafeString | str:
    """A time with the exact UTC on hover. `day`: Sun 14:15:42; `clock`: 14:15:42."""
    if when is None:
        return formats.NONE
    text = formats.clock(when) if form == "clock" else formats.day_and_time(when)
    return format_html('<time datetime="{}" title="{}">{}</time>', when.isoformat(), formats.exact(when), text)


@register.simple_tag
def age(when: datetime | None, suffix: str = "ago") -> SafeString | str:
    """An age that the browser keeps counting: the page's text then stands still while nothing new arrives.

    `ago`: "3 s ago"; `for`: "1 h 12 min".
    """
    if when is None:
        return formats.NONE
    return format_html(
        '<time datetime="{}" title="{}" data-age="{}">{}</time>',
        when.isoformat(),
        formats.exact(when),
        suffix,
        formats.day_and_time(when),
    )


@register.simple_tag
def attempt_disc(number: int) -> SafeString:
    return format_html('<span class="an a{}">{}</span>', (number - 1) % 6 + 1, number)


@register.simple_tag
def data_json(value: Any) -> str:
    """JSON for a data attribute; the template engine escapes it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
