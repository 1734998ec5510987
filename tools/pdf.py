"""Print the book into one file, book/_build/book.pdf, with Chromium and without TeX.

    python tools/pdf.py [FOLDER]     builds in FOLDER (book), needs Debian's `chromium` or the like

Sphinx joins all pages into one, which is printed on A4 with a table of contents for the reader's
sidebar. Solutions are open in it; an interactive figure is printed as it stands at first.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
BUILD = [
    str(Path(sys.executable).with_name("jupyter-book")),
    "build",
    ".",
    "--builder",
    "singlehtml",
]
OPEN_SOLUTIONS = "document.querySelectorAll('.tag_hide-cell details').forEach((d) => d.open = true)"
FORMULAS = "window.MathJax && MathJax.startup.promise.then(() => true)"
CHAPTERS = """
    span[id^="document-"] + section { break-before: page; }
    span[id^="document-"] + section > h3 { font-size: 2rem; margin-top: 0; }
    span[id^="document-"] + section > section > h4 { font-size: 1.4rem; }
    #contents > h2 { display: none; } /* the first page has one with links */
"""
FOOT = (
    '<div style="font: 8px sans-serif; width: 100%; text-align: center">'
    '<span class="pageNumber"></span></div>'
)
MARGINS = dict(top="16mm", bottom="18mm", left="16mm", right="16mm")


def joined(folder: Path) -> Path:
    """The one HTML page that holds the book, built in `folder`/_build/singlehtml."""
    command = [*BUILD, "--path-output", str(folder), "-W", "-n", "--all", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    built = folder / "_build" / "singlehtml"
    # Sphinx puts the page into book/, and writes its addresses as if it lay one folder higher.
    return Path(shutil.copy(built / "book" / "intro.html", built / "book.html"))


def print_page(page: Path, target: Path, browser: str) -> None:
    """Print the HTML file `page` to `target` with the Chromium at `browser`."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(color_scheme="light")
        tab.set_default_timeout(300_000)
        tab.goto(page.as_uri())
        tab.add_style_tag(content=CHAPTERS)
        tab.evaluate(FORMULAS)
        tab.evaluate(OPEN_SOLUTIONS)
        tab.pdf(
            path=target, format="A4", scale=0.8, margin=MARGINS, outline=True, tagged=True,
            print_background=True, display_header_footer=True, header_template="<span></span>",
            footer_template=FOOT,
        )  # fmt: skip
        chromium.close()


def main(arguments: list[str]) -> int:
    """Write the PDF; 0, or 1 where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("no Chromium on PATH, so nothing can be printed; install Debian's `chromium`")
        return 1
    folder = Path(arguments[0]) if arguments else ROOT / "book"
    target = folder / "_build" / "book.pdf"
    print_page(joined(folder), target, browser)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
