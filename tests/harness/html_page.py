"""Parses HTML pages for assertions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_URL_ATTRIBUTES = {
    "src",
    "href",
    "xlink:href",
    "srcset",
    "poster",
    "action",
    "formaction",
    "data",
    "background",
    "ping",
}
_FETCH_CALLS = re.compile(r"url\s*\(|@import|fetch\s*\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\s*\(")
_VOID_TAGS = {"meta", "link", "br", "img", "hr", "input", "base"}


@dataclass
class HtmlPage(HTMLParser):
    """Parsed content of a page."""

    text: str
    tags: list[str] = field(default_factory=list)
    lines: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """The lines of each plot, by plot title."""
    outside: list[str] = field(default_factory=list)
    """References to external resources, and code that could load them."""
    words: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._plot = ""
        self.feed(self.text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.outside += [f"{tag} {name}={attributes[name]}" for name in _URL_ATTRIBUTES & set(attributes)]
        self.outside += [
            f"{tag} style={attributes['style']}" for _ in _FETCH_CALLS.findall(attributes.get("style", ""))
        ]
        self.outside += [tag] if tag in ("link", "iframe", "object", "embed", "img", "base", "form") else []
        self.outside += [f"{tag} {name}" for name in attributes if name.startswith("on")]
        if tag == "svg":
            self._plot = attributes.get("aria-label", "")
        if tag == "path" and "line" in attributes.get("class", "").split():
            self.lines.setdefault(self._plot, []).append(attributes)
        if tag not in _VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an empty element."""
        self.handle_starttag(tag, attrs)
        if tag not in _VOID_TAGS:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Record a text."""
        if self.open and self.open[-1] in ("script", "style"):
            self.outside += _FETCH_CALLS.findall(data)
        else:
            self.words.append(data)


def line_points(path: str) -> Iterator[tuple[float, float]]:
    """Yield the points of a plot line."""
    x = 0.0
    for part in path.replace("h0", "").replace("M", " ").replace("H", " H").replace("V", " V").split():
        if part[0] == "H":
            x = float(part[1:])
        elif part[0] == "V":
            yield x, float(part[1:])
        elif "V" not in path:
            first, _, second = part.partition(",")
            yield float(first), float(second)
