"""Pages as their readers see them."""

from html.parser import HTMLParser


class Text(HTMLParser):
    """The words of a page, without its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.parts).split())
