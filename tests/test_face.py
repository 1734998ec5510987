"""The face of the built book: no barrier by axe-core's rules in either theme, light pages, a name
and a description for every page. Reads book/_build/html as `make book` left it.

sphinx-book-theme and docutils break rules of their own; book/_ext/kvbook.py, book/_templates and
kv.css mend all of them, so no rule is excepted here, inside the article or outside it.
"""

import re
from pathlib import Path

import pytest

from browser import BOOK, PAGES, Visit, served

AXE = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"
# A theme fades in: a button is measured in its own colours, not in those on the way there.
SETTLED = "document.getAnimations().every((a) => a.playState === 'finished')"
RUN_AXE = """axe.run({resultTypes: ['violations']}).then((result) => result.violations.map(
    (rule) => [rule.id, rule.help, ...rule.nodes.slice(0, 5).map((node) => node.html)]))"""
MAX_BYTES = {"book": 1_400_000, "notebooks": 4_000_000, "": 1_200_000}  # by folder
MAX_MATH_BYTES = 1_300_000  # MathJax and its fonts, on pages with formulas
MAX_FIRST_PAINT_S = 10.0  # half a second on an idle machine; tests share theirs


@pytest.fixture(scope="module", autouse=True)
def root():
    with served() as address:
        yield address


@pytest.mark.parametrize("page", PAGES)
def test_no_barrier_in_either_theme(browser, root, page):
    visit = Visit(browser, root, color_scheme="light").open(root + page)
    visit.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    visit.page.add_script_tag(path=AXE)
    for theme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=theme)
        visit.page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
        visit.page.wait_for_function(SETTLED)
        assert visit.page.evaluate(RUN_AXE) == [], theme
    visit.context.close()


def test_every_page_is_light_and_soon_seen(browser, root, capsys):
    rows = [weigh(browser, root, page) for page in PAGES]
    with capsys.disabled():
        print(f"\n{'page':34} {'weight, kB':>10} {'first paint, s':>14}")
        for page, weight, _, paint in rows:
            print(f"{page:34} {weight / 1e3:>10,.0f} {paint:>14.2f}")
    for page, weight, math, paint in rows:
        most = MAX_BYTES[page.rpartition("/")[0]] + math * MAX_MATH_BYTES
        assert 10_000 < weight < most, f"{page} weighs {weight:,} bytes, at most {most:,} is right"
        assert paint < MAX_FIRST_PAINT_S, page


def weigh(browser, root: str, page: str) -> tuple[str, int, bool, float]:
    """The page, the bytes it sends uncompressed, whether MathJax is among them, and the seconds
    until something is painted, with nothing cached.
    """
    visit = Visit(browser, root).open(root + page)
    entries = visit.page.evaluate("""() => ['navigation', 'resource']
        .flatMap((kind) => performance.getEntriesByType(kind))
        .map((entry) => [entry.name, entry.encodedBodySize])""")
    visit.page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    paint = visit.page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    visit.context.close()
    math = any("mathjax" in name for name, _ in entries)
    return page, sum(size for _, size in entries), math, paint / 1e3


def test_every_page_has_a_title_and_a_description_of_its_own():
    """Search and the index describe the whole book; a card's picture goes with every page."""
    found = {page: named(page) for page in PAGES}
    for page, tags in found.items():
        assert 20 < len(tags["description"]) <= 200, page
        assert tags["og:description"] == tags["description"], page
        assert (BOOK / page).parent.joinpath(tags["og:image"]).is_file(), page
    own = [tags for page, tags in found.items() if "/" in page]
    for name in ("title", "og:title", "description"):
        assert len({tags[name] for tags in own}) == len(own), f"two pages share their {name}"


def named(page: str) -> dict[str, str]:
    """The title of a page and what its meta elements say, by name."""
    text = (BOOK / page).read_text(encoding="utf-8")
    tags = re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', text)
    return dict(tags) | {"title": re.findall("<title>(.*?)</title>", text, re.S)[0]}
