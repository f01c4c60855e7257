"""Checks a built site: ``python tools/check_site.py FOLDER``.

Each link and each picture leads to a file of the site, each anchor to an element there; nothing is loaded from other hosts; the
search index has the words that people look for, and leads to the page that answers them.
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

SEARCHED: Final = (
    "health check", "dead letter", "exactly once", "reconnect", "retry", "ordering", "timeout", "transaction", "TLS", "Kubernetes",
    "idempotent", "healthcheck", "pytest",
)  # fmt: skip
LEADS: Final = {
    "retry": "consumer.html", "retries": "production.html", "timeout": "production.html", "ordering": "consumer-order.html",
    "exactly once": "inbox.html", "pytest": "testing.html", "health check": "production.html", "dead letter": "production.html",
    "probe": "production.html", "TLS": "security.html", "Kubernetes": "production.html", "wheel": "quickstart.html",
}  # fmt: skip
"""The page with a heading that has these words, and no other page with such a heading counts more in the search."""
LOADING: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that load something when the page is shown."""


class Page(HTMLParser):
    """``links``: with the elements they are in; ``ids``: of elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if found := values.get("id"):
            self.ids.add(found)
        if tag == "a" and (found := values.get("name")):
            self.ids.add(found)
        for name in ("href", "src"):
            if found := values.get(name):
                self.links.append((tag, found))


def problems(site: Path) -> list[str]:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        shown = path.relative_to(site).as_posix()
        for tag, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag in LOADING:
                    found.append(f"{shown}: <{tag}> loads {link}")
                continue
            if shown == "404.html":  # its links begin at the root of the host
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{shown}: no file for {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids | {"__top"}:
                found.append(f"{shown}: no element for {link}")
    index = json.loads((site / "search" / "search_index.json").read_text())
    text = " ".join(f"{entry['title']} {entry['text']}" for entry in index["docs"]).lower()
    found += [f"search finds no {words!r}" for words in SEARCHED if words.lower() not in text]
    return found + misled(index["docs"])


def misled(sections: list[dict[str, Any]]) -> list[str]:
    """A hit in a heading counts a thousand times one in the text; the end of each word is left open, as the search leaves it."""
    found = []
    for words, page in LEADS.items():
        boosts: dict[str, float] = {}
        for section in sections:
            heads = re.split(r"[\s\-_,:!=\[\]()\"`/.]+", section["title"].lower())
            if all(any(head.startswith(word) for head in heads) for word in words.lower().split()):
                place = section["location"].partition("#")[0]
                boosts[place] = max(boosts.get(place, 0), section.get("boost", 1))
        if page not in boosts or boosts[page] < max(boosts.values()):
            found.append(f"search for {words!r} leads to {boosts}, not first to {page}")
    return found


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    print(*found, f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
