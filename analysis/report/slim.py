"""An SVG of matplotlib's in half of its bytes, drawn the same: for a page that holds fifty of them.

Each path repeats its whole style, so styles become classes. Names of groups and indentation go: nobody reads them
there. The files beside the page are left as they are, for who opens one in an editor.
"""

from __future__ import annotations

import re

TAG = re.compile(rb"<[^>]+>")  # matplotlib writes no > in an attribute
STYLE = re.compile(rb' style="([^"]*)"')
NAMED_GROUP = re.compile(rb'<g id="\w+?_\d+"')  # matplotlib's own counting; what is referred to has other names
UNTURNED = re.compile(rb' transform="rotate\(-0 [^"]*\)"')
BETWEEN = re.compile(rb">\s+<")
INDENT = re.compile(rb"\s*\n\s*")
END_OF_STYLES = b"</style>"


def slim(svg: bytes) -> bytes:
    """`svg`: UTF-8. What has no style sheet of its own keeps its styles where they are."""
    smaller = BETWEEN.sub(b"><", INDENT.sub(b" ", NAMED_GROUP.sub(b"<g", svg)))
    head, sheet, body = smaller.partition(END_OF_STYLES)
    if not sheet:
        return smaller
    names: dict[bytes, bytes] = {}

    def named(match: re.Match[bytes]) -> bytes:
        return b' class="%s"' % names.setdefault(match[1], b"s%d" % len(names))

    body = TAG.sub(lambda tag: STYLE.sub(named, UNTURNED.sub(b"", tag[0])), body)
    rules = b"".join(b".%s{%s}" % (name, style.replace(b": ", b":")) for style, name in names.items())
    return head + rules + sheet + body
