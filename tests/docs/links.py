"""Every link of the site to itself leads to a file that is there, and to a place in it: links.py
FOLDER
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")


def main(site: pathlib.Path) -> int:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    count, failures = 0, 0
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            place = urllib.parse.unquote(url.fragment)
            if not target.is_file() or (
                target in pages and place and place not in pages[target].places
            ):
                failures += 1
                print(f"{path.relative_to(site)}: {link} leads nowhere")
    print(f"{len(pages)} pages, {count} links within the site, {failures} lead nowhere")
    return 1 if failures or not count else 0


sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
