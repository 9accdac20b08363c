"""The page of `polylib trace --html` in a real browser: it works, it asks no network for anything, and it is quick."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from trace_pages import images, steps, write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")

DATA = Path(__file__).resolve().parents[1] / "data" / "rllib_json"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests."""
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=60_000)
        except sync_api.Error as error:
            pytest.skip(f"Chromium doesn't start here: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


class Seen:
    """What a page said and asked for."""

    def __init__(self):
        self.errors, self.requests = [], []

    def said(self, message):
        # That pixels are read back often is the tests' doing.
        if message.type in ("error", "warning") and "readback" not in message.text:
            self.errors.append(message.text)

    def check(self):
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
        assert sum(url.startswith("file:") for url in self.requests) == 1  # the page itself


@pytest.fixture
def open_page(browser, call, tmp_path):
    """`open_page(*arguments)`: the page, shown; nothing may have gone wrong by the end of the test."""
    pages = []

    def show(*argv, scheme="light", width=1400, height=900):
        path = tmp_path / f"report{len(pages)}.html"
        outcome = call("trace", *map(str, argv), "--html", str(path))
        assert outcome.status == 0, outcome.err
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page, seen = context.new_page(), Seen()
        show.seen = seen
        page.on("console", seen.said)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        pages.append((context, seen))
        page.goto(path.as_uri())
        page.wait_for_selector(".episode > *")
        settled(page)
        return page

    yield show
    for context, seen in pages:
        context.close()
        seen.check()


def settled(page):
    """Two frames later everything is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, expression):
    """Waits for an expression to be true; playwright's own way evaluates text, which the page forbids."""
    deadline = time.monotonic() + 10
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def ids(page):
    return page.eval_on_selector_all(".rows tr.row", "rows => rows.map(row => row.dataset.id)")


def read_out(page, name):
    """The value at the cursor that stands beside a lane's name."""
    return page.eval_on_selector_all(
        ".series", "(all, name) => all.find(x => x.querySelector('.name').textContent === name)"
        "?.querySelector('.now').textContent", name
    )  # fmt: skip


def number(text):
    return float(text.replace("−", "-"))


def colours_in(page, selector):
    """How many different colours a canvas has."""
    return page.eval_on_selector(
        selector,
        """canvas => {
          const { width, height } = canvas;
          const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
          return new Set(data).size;
        }""",
    )


@pytest.fixture
def folder(tmp_path):
    """Five episodes of a discrete policy with infos that would do harm as markup."""
    return write(tmp_path / "traces", *(steps(i, 30 + 10 * ((3 * i) % 5), seed=i) for i in range(5)))


def test_the_list_sorts(open_page, folder):
    page = open_page(folder)
    lengths = {str(i): 30 + 10 * ((3 * i) % 5) for i in range(5)}
    assert ids(page) == list("01234")
    head = page.locator("th", has=page.get_by_role("button", name="length"))
    page.get_by_role("button", name="length").click()
    assert ids(page) == sorted(lengths, key=lambda e: -lengths[e]) and head.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="length").click()
    assert ids(page) == sorted(lengths, key=lambda e: lengths[e]) and head.get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="return").click()
    shown = page.eval_on_selector_all(".rows tr.row", "rows => rows.map(row => row.children[1].textContent)")
    assert list(map(number, shown)) == sorted(map(number, shown), reverse=True)
    page.get_by_role("button", name="episode").click()
    assert ids(page) == list("01234")
    page.get_by_role("searchbox").fill("3")
    assert ids(page) == ["3"]
    page.get_by_role("searchbox").fill("x")
    assert ids(page) == [] and "No episode like that" in page.inner_text(".rows")


def test_an_episode_step_by_step(open_page, folder):
    page = open_page(folder)
    page.locator("tr.row[data-id='2']").click()
    settled(page)
    assert page.inner_text(".about h2") == "Episode 2"
    assert page.get_attribute("tr.row[data-id='2']", "aria-selected") == "true"
    batch = steps(2, 40, seed=2)
    for key, row in (("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10), ("End", 39), ("Home", 0)):
        page.keyboard.press(key)
        settled(page)
        assert f"t = {row}" in page.inner_text(".controls output")
        assert number(read_out(page, "reward")) == pytest.approx(float(batch["rewards"][row]), rel=2e-3)
        assert number(read_out(page, "obs[3]")) == pytest.approx(float(batch["obs"][row, 3]), rel=2e-3)
        assert number(read_out(page, "value")) == pytest.approx(float(batch["vf_preds"][row]), rel=2e-3)
        probability = float(np.exp(batch["action_logp"][row]))
        assert read_out(page, "action") == f"{batch['actions'][row]} ({probability:.0%})".replace("%", " %")
    slider = page.locator("input.steps")
    slider.fill("25")
    settled(page)
    assert "t = 25" in page.inner_text(".controls output") and '"lives": 2' in page.inner_text("pre.info")
    assert slider.get_attribute("aria-valuetext") == "step 25"
    page.get_by_role("button", name="One step on").click()
    assert "t = 26" in page.inner_text(".controls output")


def test_the_cursor_is_the_same_in_all_plots_and_follows_the_mouse(open_page, folder):
    page = open_page(folder)
    rows = page.evaluate("app.panes[0].view.rows")
    box = page.locator(".plot").nth(3).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    settled(page)
    assert page.evaluate("app.panes[0].view.at") == rows // 2
    places = page.eval_on_selector_all(".plot", "all => all.map(plot => getComputedStyle(plot, '::after').transform)")
    assert len({place for place in places if "-9" not in place}) == 1


def test_zooming(open_page, folder):
    page = open_page(folder)
    rows = page.evaluate("app.panes[0].view.rows")
    box = page.locator(".plot").nth(0).bounding_box()
    y = box["y"] + 20
    page.mouse.move(box["x"] + box["width"] * 0.25, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
    page.mouse.up()
    settled(page)
    view = page.evaluate("app.panes[0].view.view")
    assert view["from"] == pytest.approx(rows * 0.25, abs=1.5) and view["to"] == pytest.approx(rows * 0.75, abs=1.5)
    assert page.inner_text(".window").startswith("showing t = ")
    page.keyboard.press("End")  # the window goes where the cursor goes
    settled(page)
    assert page.evaluate("app.panes[0].view.view.to") == rows
    page.keyboard.press("0")
    settled(page)
    assert page.evaluate("app.panes[0].view.view.from") == 0 and page.inner_text(".window") == ""


def test_every_lane_is_drawn_when_it_is_looked_at(open_page, folder):
    page = open_page(folder, height=600)
    assert page.evaluate("app.panes[0].view.lanes.filter(lane => lane.drawn).length") < page.locator(".lane").count()
    page.locator("details summary").click()
    for i in range(page.locator(".lane").count()):
        page.locator(".lane").nth(i).scroll_into_view_if_needed()
        settled(page)
    until(page, "app.panes[0].view.lanes.every(lane => lane.drawn)")
    assert page.evaluate("app.panes[0].view.lanes.every(lane => lane.canvas.getAttribute('aria-label').length > 10)")


def test_playing(open_page, folder):
    page = open_page(folder)
    page.keyboard.press(" ")
    until(page, "app.panes[0].view.at >= 3")
    page.get_by_role("button", name="Pause").click()
    assert page.evaluate("app.panes[0].view.timer") is None


def test_nothing_of_the_traces_runs(open_page, tmp_path):
    hostile = "<img src=x onerror='window.harmed=1'>"
    folder = write(tmp_path / "x", steps(hostile, 5, **{hostile: np.zeros(5)}))
    page = open_page(folder)
    page.locator("details summary").click()
    settled(page)
    assert page.evaluate("window.harmed") is None and page.locator("img").count() == 0
    assert page.inner_text(".about h2") == f"Episode {hostile}" and "window.harmed" in page.inner_text("pre.info")
    # Not even what gets into the page by another way.
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.harmed = 1";
          document.body.append(script);
        }"""
    )
    assert page.evaluate("window.harmed") is None
    (blocked,) = open_page.seen.errors
    assert "Content Security Policy" in blocked
    open_page.seen.errors.clear()


def test_the_film_strip(open_page, tmp_path):
    frames = images(40)
    page = open_page(write(tmp_path / "x", steps(1, 40, obs=frames)))
    slider = page.get_by_role("slider", name="Frame of obs")
    for row in (0, 17, 39):
        slider.fill(str(row))
        settled(page)
        until(page, "app.panes[0].view.films[0].image(app.panes[0].view.at) !== null")
        settled(page)
        assert f"t = {row}" in page.inner_text(".controls output")
        shown = page.eval_on_selector(
            ".film .now",
            "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)",
        )
        assert (np.array(shown).reshape(12, 16, 4)[..., :3] == frames[row]).all()
    page.locator(".strip").click(position={"x": 5, "y": 20})
    settled(page)
    assert page.evaluate("app.panes[0].view.at") < 39


def test_the_distribution_narrows_the_list(open_page, folder):
    page = open_page(folder)
    assert colours_in(page, ".histogram canvas") > 2
    box = page.locator(".histogram canvas").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 40)
    assert page.inner_text(".histogram .title").endswith("1 episode")
    page.mouse.click(box["x"] + 2, box["y"] + 40)
    assert len(ids(page)) == 1 and page.inner_text(".tools h2") == "1 of 5 episodes"
    page.get_by_title("Show all episodes").click()
    assert len(ids(page)) == 5


def test_a_bar_lists_as_many_episodes_as_it_counts(open_page, tmp_path):
    """Returns 0 to 8 make 8 bars of width 1: 1 stands on the edge of the first, and belongs to the second."""
    n = 9
    batch = steps(0, n, rewards=np.arange(n, dtype=np.float64))
    batch["eps_id"], batch["t"] = np.arange(n), np.zeros(n, int)
    batch["terminateds"] = np.ones(n, np.bool_)
    page = open_page(write(tmp_path / "x", batch))
    assert page.evaluate("app.histogram.bins.counts") == [[1, 1, 1, 1, 1, 1, 1, 2]]
    page.locator(".histogram canvas").focus()
    for key, listed in (("ArrowRight", ["0"]), ("ArrowRight", ["1"]), ("ArrowLeft", ["0"])):
        page.keyboard.press(key)
        page.keyboard.press("Enter")
        assert ids(page) == listed and page.inner_text(".histogram .title").endswith("1 episode")
    assert page.evaluate("app.panes[0].view.at") == 0  # arrows didn't move the episode
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    page.locator(".histogram canvas").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert ids(page) == ["7", "8"]


def test_several_policies(open_page):
    page = open_page(DATA / "multi_agent_cartpole")
    page.get_by_role("button", name="policy", exact=True).click()
    cells = page.eval_on_selector_all(".rows tr.row", "rows => rows.map(row => row.children[1].textContent)")
    assert cells == ["p0"] * 7 + ["p1"] * 7
    page.locator("tr.row").nth(8).click()
    assert page.inner_text(".about p").startswith("policy p1 · ")


def test_two_folders_side_by_side(open_page, tmp_path):
    a = write(tmp_path / "a", steps(1, 20, seed=1), steps(2, 30, seed=2))
    b = write(tmp_path / "b", steps(1, 60, seed=3, rewards=np.full(60, 9, np.float32)))
    page = open_page("--compare", a, b, width=1600)
    assert page.locator(".pane").count() == 2 and "A · 2 episodes" in page.inner_text(".pane >> nth=0")
    # One scale for both, and one step.
    ranges = page.evaluate("app.panes.map(pane => pane.view.lanes[0].range)")
    assert ranges[0] == ranges[1] and ranges[0][1] == 9
    page.locator(".pane").nth(0).locator("input.steps").fill("12")
    settled(page)
    assert page.evaluate("app.panes.map(pane => pane.view.at)") == [12, 12]
    assert page.locator(".compared tbody tr").count() > 10


def test_many_episodes_keep_few_rows_in_the_page(open_page, tmp_path):
    n = 3000
    batch = steps(0, n)
    batch["eps_id"], batch["t"] = np.arange(n), np.zeros(n, int)
    page = open_page(write(tmp_path / "x", batch), "--embed", "3")
    assert page.locator("tr.row").count() < 100
    page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
    settled(page)
    assert ids(page)[-1] == "2999"
    page.locator("tr.row").last.click()
    settled(page)
    listed = page.evaluate("app.panes[0].source.episodes.key[2999]") is None
    assert ("listed only" in page.inner_text(".episode")) == listed
    page.keyboard.press("p")
    assert page.evaluate("app.panes[0].list.chosen") == 2998


def test_what_is_chosen_and_all_numbers_are_in_sight(open_page, tmp_path):
    n = 200
    batch = steps(0, n, rewards=np.linspace(-0.12345, 1, n))  # the last one is the best, and chosen
    batch["eps_id"], batch["t"] = np.arange(n), np.zeros(n, int)
    page = open_page(write(tmp_path / "x", batch), "--embed", "300")
    row = page.locator("tr.row[aria-selected=true]")
    assert row.get_attribute("data-id") == "199"
    assert row.evaluate("row => row.getBoundingClientRect().bottom < innerHeight + 1")
    page.evaluate("document.querySelector('.rows').scrollTop = 0")
    settled(page)
    assert page.locator("tr.row td").evaluate_all("cells => cells.every(td => td.scrollWidth <= td.clientWidth)")
    assert page.inner_text("tr.row[data-id='0'] td:nth-child(2)") == "−0.1235"


def test_many_choices_have_their_ends_named_and_small_shares_are_not_nothing(open_page, tmp_path):
    logits = np.zeros((8, 200), np.float32)
    logp = np.full(8, np.log(1 / 200))
    page = open_page(write(tmp_path / "x", steps(1, 8, action_dist_inputs=logits, action_logp=logp)))
    assert read_out(page, "action").endswith("(< 1 %)")
    lane = page.locator(".lane", has=page.get_by_text("action", exact=True))
    assert lane.first.locator(".ends").inner_text().split() == ["0", "199"]


@pytest.mark.parametrize("width", [400, 1000])
def test_a_wide_film_leaves_room_for_its_strip(open_page, tmp_path, width):
    stack = np.zeros((20, 84, 84, 4), np.uint8)
    page = open_page(write(tmp_path / "x", steps(1, 20, obs=stack)), width=width)
    assert page.evaluate("document.querySelector('.film .strip').clientWidth") >= 200
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_dark(open_page, folder):
    page = open_page(folder, scheme="dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 19, 21)"
    before = page.evaluate("colours.accent")
    page.emulate_media(color_scheme="light")
    until(page, f"colours.accent !== '{before}'")


def test_an_empty_page_of_odd_traces(open_page, tmp_path):
    (tmp_path / "x.json").write_text('{"type": "SampleBatch", "actions": [[0, 1], [1, 1]], "dones": [false, true]}\n')
    page = open_page(tmp_path / "x.json")
    assert "no observations were recorded" in page.inner_text(".about") and page.locator(".lane").count() == 2 + 2
    assert page.inner_text(".histogram .title").strip() == "No returns"


def test_ten_thousand_steps_are_quick(open_page, tmp_path):
    """Far above what they take (a few ms of drawing), since the machines of tests are busy: it must not be seconds."""
    infos = np.empty(10_000, object)
    infos[:] = [{"i": i} for i in range(10_000)]
    obs = np.random.default_rng(0).normal(size=(10_000, 24)).astype(np.float32)
    folder = write(tmp_path / "x", *(steps(i, 10_000, obs=obs, infos=infos) for i in range(3)))
    page = open_page(folder)
    start = time.monotonic()
    page.locator("tr.row[data-id='1']").click()
    settled(page)
    assert time.monotonic() - start < 3
    found = page.evaluate(
        """async () => {
          const frame = () => new Promise((done) => requestAnimationFrame(() => done(performance.now())));
          const view = app.panes[0].view, slider = document.querySelector("input.steps"), took = [];
          for (let i = 0; i < 30; i++) {
            const start = performance.now();
            slider.value = i * 333;
            slider.dispatchEvent(new Event("input"));
            scrollTo(0, i * 30);
            if (i % 10 === 9) view.zoom(0.5);
            await frame();
            took.push(performance.now() - start);
          }
          const start = performance.now();
          view.lanes.forEach((lane) => lane.draw({ ...view.view }));
          return { frames: took.sort((a, b) => a - b), draw: (performance.now() - start) / view.lanes.length };
        }"""
    )
    assert found["frames"][15] < 250 and found["draw"] < 25
