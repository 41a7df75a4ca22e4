"""HTML without a template engine: elements as function calls, and all text escaped."""

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

# Elements that have no content and no end tag.
_VOID = {"br", "img", "input", "meta"}
# Letters that a cell shows in one line.
_SHORT = 22
# Inside a script these could end it, begin a comment, or be read as an entity.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class Html(str):
    """Text that is HTML already; all other text is escaped where it is put into an element."""


def element(kind: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; children that are not HTML are escaped, and so are all attributes.

    An attribute that is None or False is left out, one that is True has no value. In names `_`
    becomes `-`, and one at the end is dropped, for words that Python reserves.

    Examples:
        >>> print(element("p", "1 < 2", class_="note", data_step=3))
        <p class="note" data-step="3">1 &lt; 2</p>
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if kind in _VOID:
        return Html(f"<{kind}{written}>")
    return Html(f"<{kind}{written}>{join(children)}</{kind}>")


def join(children: Iterable[object]) -> Html:
    """Return children one after the other, escaped unless they are HTML; None is left out."""
    return Html("".join(escape(child) for child in children if child is not None))


def escape(text: object) -> Html:
    """Return text as HTML, also for an attribute."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def data_script(name: str, value: Any) -> Html:
    r"""Return data for scripts as a block of JSON that nothing in it can end.

    Examples:
        >>> print(data_script("names", ["</script>"]))
        <script type="application/json" id="data-names">["\u003c/script\u003e"]</script>
    """
    # ASCII only, so U+2028 and its like are written as escapes too.
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign, code in _UNSAFE.items():
        text = text.replace(sign, code)
    return Html(f'<script type="application/json" id="data-{escape(name)}">{text}</script>')


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "") -> Html:
    """Return a table in a box that scrolls by itself when the window is narrow."""
    top = element("tr", *(element("th", words, scope="col") for words in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(_cell(part) for part in row[1:]))
        for row in rows
    ]
    inner = join((element("thead", top), element("tbody", *body)))
    if caption:
        inner = join((element("caption", caption), inner))
    return scrolled(element("table", inner), caption or "table")


def scrolled(inner: Html, words: str) -> Html:
    """Return a box that scrolls by itself, with the keyboard too; `words` names it."""
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=words)


def _cell(part: object) -> Html:
    """A cell; short words stay on one line, long ones get room."""
    if isinstance(part, Html):
        return element("td", part)
    return element("td", part, class_="short" if len(str(part)) <= _SHORT else "long")


def copy_button(command: str, what: str) -> Html:
    """Return a button that copies a command; `what` names it for screen readers."""
    if not command:
        return Html("")
    return element(
        "button",
        "copy command",
        type="button",
        class_="copy",
        data_command=command,
        title=command,
        aria_label=f"copy the command of {what}",
    )


def more(summary: object, *children: object, **attributes: object) -> Html:
    """Return a part of the page that is folded at first."""
    return element("details", element("summary", summary), *children, **attributes)


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
