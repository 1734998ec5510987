"""The built book, read in a real browser with the network cut, over http and from the file system.

Reads book/_build/html as `make book` left it, and builds nothing.
"""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import api
from browser import BOOK, DESK, PAGES, PHONE, START, Visit, served

CHAPTERS = [page for page in PAGES if page.startswith("notebooks/")]
SCHEMES = ["http", "file"]
FIGURES = "figure.kv-explore, figure.kv-array"


@pytest.fixture(scope="module", autouse=True)
def roots():
    """Scheme -> address of the book's folder."""
    with served() as address:
        yield {"http": address, "file": BOOK.as_uri() + "/"}


@pytest.fixture(
    scope="module",
    params=[(scheme, page) for page in PAGES for scheme in SCHEMES],
    ids=lambda param: ":".join(param),
)
def visit(request, browser, roots):
    """Each page, opened once over each scheme, for all the tests that read it."""
    scheme, page = request.param
    opened = Visit(browser, roots[scheme]).open(roots[scheme] + page)
    yield opened
    opened.context.close()


def test_nothing_is_asked_of_the_network_and_nothing_fails(visit):
    assert visit.outside == []
    assert visit.wrong == []


def test_every_formula_is_rendered(visit):
    count = visit.page.evaluate("document.querySelectorAll('.math').length")
    done = visit.page.evaluate("document.querySelectorAll('.math mjx-container mjx-math').length")
    assert done >= count
    assert visit.page.locator("[data-mml-node=merror], mjx-merror").count() == 0


def test_no_formula_is_left_as_source(visit):
    text = (
        visit.page.evaluate("""() => {
        const copy = document.querySelector('article').cloneNode(true);
        copy.querySelectorAll('pre, code, script, mjx-container').forEach((e) => e.remove());
        return copy.textContent;
    }""")
        if visit.page.locator("article").count()
        else ""
    )
    assert re.findall(r"\\\(|\\\[|\$\$|\\begin\{|\$\\?\w[^$\n]*\$", text) == []


def test_every_picture_is_there_and_described(visit):
    images = visit.page.evaluate("""() => [...document.querySelectorAll('article img')].map(
        (i) => ({alt: i.alt, drawn: i.complete && i.naturalWidth > 0, src: i.src.slice(0, 80)}))""")
    for image in images:
        assert image["drawn"], image
        assert len(image["alt"]) > 10 and not image["alt"].startswith(("..", "/", "_"))


def test_each_control_changes_its_picture_by_keyboard(visit):
    for figure in visit.page.locator(FIGURES).all():
        for control in figure.locator("input, select").all():
            assert control.is_visible() and control.evaluate("e => e.labels.length") == 1
            assert moves(control, figure), control.evaluate("e => e.outerHTML")


def picture(figure) -> tuple[str, str]:
    """What an interactive figure shows, and the text that describes it."""
    drawn, text = figure.evaluate("""f => {
        const canvas = f.querySelector('canvas'), image = f.querySelector('img');
        return image ? [image.src, image.alt] : [canvas.toDataURL(), canvas.ariaLabel];
    }""")
    assert len(text) > 10
    return drawn, text


def moves(control, figure) -> bool:
    """True where an arrow key, pressed until the control's end if need be, changes the picture."""
    forth, back = ("ArrowRight", "ArrowLeft")
    steps = int(control.get_attribute("max") or control.locator("option").count() - 1)
    if control.evaluate("e => e.tagName") == "SELECT":
        forth, back = "ArrowDown", "ArrowUp"
    drawn, text = picture(figure)
    for key in [forth] * steps + [back] * steps:
        control.press(key)
        new_drawn, new_text = picture(figure)
        if new_drawn != drawn:
            return new_text != text
    return False


def test_the_tabulator_key_stops_at_controls_and_says_where(visit):
    """Formulas were stops, sixty on one page; three of the theme's buttons did not show focus."""
    if visit.page.url.startswith("file:"):
        return  # the same page as over http
    stops = visit.page.locator("mjx-container[tabindex='0']").all()
    assert all(stop.evaluate("e => e.scrollWidth > e.clientWidth") for stop in stops)
    for _ in range(30):
        visit.page.keyboard.press("Tab")
        hidden = visit.page.evaluate("""() => {
            const now = document.activeElement;
            const seen = now === document.body || getComputedStyle(now).outlineStyle !== 'none';
            return seen ? '' : now.outerHTML.slice(0, 200);
        }""")
        assert hidden == ""
    visit.page.evaluate("document.activeElement.blur()")


def test_a_laptop_shows_whole_lines_of_code(visit):
    wide = visit.page.evaluate("""[...document.querySelectorAll('.cell_input pre')]
        .filter((e) => e.scrollWidth > e.clientWidth + 10).map((e) => e.textContent)""")
    assert wide == []


def test_a_phone_scrolls_no_page_sideways_and_wide_tables_by_key(visit):
    visit.page.set_viewport_size(PHONE)
    visit.page.wait_for_function("""[...document.querySelectorAll('.bd-article table')]
        .every((table) => table.tabIndex === 0 || table.scrollWidth <= table.clientWidth + 4)""")
    width = visit.page.evaluate("document.documentElement.scrollWidth")
    visit.page.set_viewport_size(DESK)
    assert width <= PHONE["width"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reload_forgets_what_was_chosen(browser, roots, scheme):
    """Firefox and Chromium restore form fields; a restored slider would belie its picture."""
    for chapter in CHAPTERS[:1]:
        opened = Visit(browser, roots[scheme]).open(roots[scheme] + chapter)
        figure = opened.page.locator(FIGURES).first
        control = figure.locator("input, select").first
        value, before = control.input_value(), picture(figure)
        assert moves(control, figure)
        opened.page.reload()
        assert control.input_value() == value and picture(figure) == before
        opened.context.close()


def test_figures_need_no_script(browser, roots):
    for chapter in CHAPTERS:
        opened = Visit(browser, roots["file"], java_script_enabled=False)
        opened.page.goto(roots["file"] + chapter)
        for figure in opened.page.locator(FIGURES).all():
            assert figure.locator("img").evaluate("i => i.naturalWidth > 0")
            assert not figure.locator(".kv-controls").is_visible()
        opened.context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("page", [START, *CHAPTERS[:1]])
def test_the_theme_switch_makes_the_page_dark_and_leaves_pictures_on_white(
    browser, roots, scheme, page
):
    opened = Visit(browser, roots[scheme], color_scheme="light").open(roots[scheme] + page).page
    switch = opened.locator(".theme-switch-button:visible").first
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(3):
        switch.click()
        if opened.evaluate("document.documentElement.dataset.theme") == "dark":
            break
    dark = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert brightness(light) > 200 and brightness(dark) < 60
    for image in opened.locator("article .cell_output img").all():
        ground = image.evaluate("i => getComputedStyle(i).backgroundColor")
        assert brightness(ground) == 255
    opened.context.close()


def brightness(colour: str) -> float:
    red, green, blue = (float(part) for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("scheme", SCHEMES)
def test_search_finds_pages(browser, roots, scheme):
    opened = Visit(browser, roots[scheme]).open(roots[scheme] + START)
    opened.page.locator(
        ".search-button-field:visible, .search-button__button:visible"
    ).first.click()
    field = opened.page.locator("#pst-search-dialog input[name=q]")
    field.fill("cache")
    field.press("Enter")
    found = opened.page.locator("#search-results li a")
    found.first.wait_for()
    found.first.click()
    opened.page.wait_for_url(lambda url: "search.html" not in url)
    assert "cache" in opened.page.locator("article").inner_text().lower()
    assert opened.outside == [] and opened.wrong == []
    opened.context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_front_door_leads_to_the_introduction(browser, roots, scheme):
    opened = Visit(browser, roots[scheme])
    opened.page.goto(roots[scheme] + "index.html")
    opened.page.wait_for_url("**/" + START)
    opened.context.close()


class Links(HTMLParser):
    """The ids of a page and the addresses it names."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.addresses = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag in ("a", "link", "img", "script"):
            self.addresses |= {given[key] for key in ("href", "src") if given.get(key)}


@cache
def links(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_every_internal_link_leads_somewhere(page):
    source = BOOK / page
    for address in links(source).addresses:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (source.parent / unquote(parts.path)).resolve() if parts.path else source
        assert target.is_file(), f"{page} names {address}"
        if parts.fragment and target.suffix == ".html":
            assert unquote(parts.fragment) in links(target).ids, f"{page} names {address}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_chapter_ends_with_links_to_the_functions_it_uses(browser, roots, chapter):
    """The API page led to chapters, and no chapter led to the API page."""
    opened = Visit(browser, roots["file"]).open(roots["file"] + chapter)
    last = opened.page.locator("article section > section").last
    assert last.locator("h2").inner_text().startswith("kvlib functions used here")
    found = last.locator("a[href*='api.html#']").all_inner_texts()
    used = api.functions(Path(chapter).with_suffix(".ipynb").name)
    assert sorted(found) == sorted(name for names in used.values() for name in names) != []
    assert last.locator("li").count() == len(used)
    opened.context.close()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_chapter_offers_its_notebook(chapter):
    assert any(address.endswith(".ipynb") for address in links(BOOK / chapter).addresses)
