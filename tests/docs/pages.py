"""Pages of documentation as data: their headings, links, code, and what stands in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ ]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """A fenced block: its language, its text, the page's line that its text begins on, and whether it is run."""

    language: str
    text: str
    line: int
    runs: bool


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without fenced code."""
        return FENCED.sub("", self.text)

    @property
    def words(self) -> int:
        return len(self.text.split())

    def anchors(self) -> set[str]:
        """What a link may name behind "#": each heading, as GitHub and mkdocs both write it."""
        return {slug(heading) for heading in re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)}

    def links(self) -> Iterator[str]:
        """The targets of Markdown links and images; links inside of code are none."""
        yield from re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", self.prose))

    def spans(self) -> Iterator[str]:
        """What stands in backticks, lines joined."""
        for span in re.findall(r"`([^`]+)`", self.prose):
            yield " ".join(span.split())

    def code(self, *languages: str) -> Iterator[Code]:
        """The fenced blocks of these languages. A block behind a line <!-- run --> is one that is run."""
        for match in FENCED.finditer(self.text):
            if match["language"] in languages:
                before = self.text[: match.start()].rstrip().splitlines()
                runs = bool(before) and before[-1].strip() == "<!-- run -->"
                line = self.text.count("\n", 0, match.start("text")) + 1
                yield Code(match["language"], match["text"], line, runs)


def slug(heading: str) -> str:
    """A heading's anchor: words of its text, joined by hyphens."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


PAGES = tuple(
    Page(path) for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
)
