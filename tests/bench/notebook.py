"""docs/tutorial.md as a notebook: examples/tutorial.ipynb, its prose and its code as cells.

    python -m tests.bench.notebook
"""

from __future__ import annotations

import json

from tests.docs.pages import FENCED, ROOT, Page

TUTORIAL, NOTEBOOK = Page(ROOT / "docs" / "tutorial.md"), ROOT / "examples" / "tutorial.ipynb"


def notebook(page: Page) -> dict:
    """In nbformat 4: Python is code, everything else Markdown."""
    cells, done = [], 0
    for match in FENCED.finditer(page.text):
        if match["language"] == "python":
            cells += [markdown(page.text[done : match.start()]), code(match["text"])]
            done = match.end()
    cells.append(markdown(page.text[done:]))
    numbered = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def markdown(text: str) -> dict:
    linked = text.replace("](how_to/", "](../docs/how_to/").replace("](extending.md", "](../docs/extending.md")
    return {"cell_type": "markdown", "metadata": {}, "source": linked.strip().splitlines(keepends=True)}


def code(text: str) -> dict:
    lines = text.strip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


def main() -> None:
    NOTEBOOK.write_text(json.dumps(notebook(TUTORIAL), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
