"""The page of `polylib trace --html`, as a file: what is in it, that it equals the traces, and that nothing escapes."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from fakes import small_ppo
from modes import MODES, has
from trace_pages import HOSTILE, data_in, images, lanes_in, read_png, steps, unpack, write

from polylib.cli.report.images import film, is_image
from polylib.cli.trace_choices import choices, probability_taken
from polylib.offline.episodes import episodes_of

DATA = Path(__file__).resolve().parents[1] / "data" / "rllib_json"


@pytest.fixture
def page(call, tmp_path):
    """`page(*arguments)`: the text of the page, and the notes."""

    def make(*argv):
        path = tmp_path / "report.html"
        outcome = call("trace", *map(str, argv), "--html", str(path))
        assert outcome.status == 0, outcome.err
        assert outcome.out.strip().endswith("report.html")
        assert [file.name for file in path.parent.glob("*report*")] == ["report.html"]  # nothing unfinished is left
        return path.read_text(encoding="utf-8"), outcome.notes

    return make


def test_the_numbers_are_those_of_the_traces(page):
    text, notes = page(DATA / "cartpole_plain")
    data = data_in(text)
    (source,) = data["overview"]["sources"]
    assert notes == [] and source["facts"] == ["2 files", "2 records", "22 episodes", "416 steps"]
    assert all(source["episodes"]["key"]) and len(data) == 23
    for episode in episodes_of(DATA / "cartpole_plain"):
        place = source["episodes"]["id"].index(episode.key.label)
        assert source["episodes"]["return"][place] == episode.total_reward
        found = data[source["episodes"]["key"][place]]
        lanes, columns = lanes_in(found), episode.columns
        assert found["rows"] == len(episode) and found["start"] == 0 and found["t"] is None
        for name, column in (("reward", "rewards"), ("value", "vf_preds"), ("advantage", "advantages")):
            np.testing.assert_allclose(unpack(lanes[name]["series"][0]["values"]), columns[column], rtol=1e-6)
        np.testing.assert_allclose(unpack(lanes["value"]["series"][1]["values"]), columns["value_targets"], rtol=1e-6)
        for i in range(4):
            component = unpack(lanes[f"obs[{i}]"]["series"][0]["values"])
            np.testing.assert_allclose(component, columns["obs"][:, i], rtol=1e-6)
        taken = unpack(lanes["action"]["series"][0]["values"])
        shades = unpack(lanes["action"]["shades"]).reshape(-1, 2)
        assert taken.tolist() == columns["actions"].tolist() and not lanes["action"]["scores"]
        np.testing.assert_allclose(shades.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(shades[np.arange(len(taken)), taken], columns["action_prob"], atol=2e-5)


def test_continuous_actions_have_a_density(page):
    data = data_in(page(DATA / "pendulum_sac")[0])
    lanes, (episode, _) = lanes_in(data["episode-0-0"]), episodes_of(DATA / "pendulum_sac")
    np.testing.assert_allclose(
        unpack(lanes["density of action"]["series"][0]["values"]), np.exp(episode.columns["action_logp"]), rtol=1e-5
    )
    assert lanes["actions[0]"]["kind"] == "line" and "action" not in lanes


def test_images_are_those_of_the_traces(page):
    data = data_in(page(DATA / "image_lz4")[0])
    (episode, *_) = episodes_of(DATA / "image_lz4")
    (found,) = data["episode-0-0"]["images"]
    assert (found["width"], found["height"], found["tiles"], found["every"]) == (84, 84, 4, 1)
    for row, which in enumerate(unpack(found["index"])):
        tiles = read_png(found["frames"][which]).reshape(84, 4, 84).transpose(0, 2, 1)
        assert (tiles == episode.columns["obs"][row]).all()
    assert not [name for name in lanes_in(data["episode-0-0"]) if name.startswith("obs")]


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((12, 16, 3), np.uint8, (12, 16, 3)),
        ((3, 12, 16), np.uint8, (12, 16, 3)),
        ((12, 16, 1), np.uint8, (12, 16)),
        ((12, 16), np.float32, (12, 16)),
        ((2, 12, 16), np.float32, (12, 32)),
        ((12, 16, 2), np.bool_, (12, 32)),
        ((640, 480, 3), np.uint8, (160, 120, 3)),
    ],
)
def test_images_of_many_kinds(shape, dtype, size):
    column = (np.random.default_rng(0).random((3, *shape)) * 255).astype(dtype)
    assert is_image(column)
    found = film("obs", column, 1 << 20)
    assert read_png(found["frames"][found["index"][1]]).shape == size
    assert found["width"] * found["tiles"] == size[1]
    if shape == (12, 16, 3):
        assert (read_png(found["frames"][1]) == column[1]).all()
    assert found["shrunk"] == ((480, 640) if shape[0] == 640 else None)


@pytest.mark.parametrize("shape", [(4,), (), (3, 4), (2, 2, 2), (40, 40, 40)])
def test_what_is_no_image(shape):
    assert not is_image(np.zeros((2, *shape), np.uint8))


def test_a_film_stays_within_its_budget():
    column = np.random.default_rng(0).integers(0, 255, (100, 32, 32, 3)).astype(np.uint8)
    found = film("obs", column, 50_000)
    assert found["every"] > 1 and len(found["index"]) == -(-100 // found["every"])
    assert sum(map(len, found["frames"])) < 60_000
    assert (read_png(found["frames"][found["index"][1]]) == column[found["every"]]).all()
    same = film("obs", np.zeros((100, 32, 32), np.uint8), 1 << 20)
    assert len(same["frames"]) == 1 and same["index"].tolist() == [0] * 100


def test_opaque_pictures_with_an_alpha_channel_are_in_colour():
    column = np.full((2, 16, 16, 4), 255, np.uint8)
    assert film("obs", column, 1 << 20)["tiles"] == 1
    column[..., 3] = 7
    assert film("obs", column, 1 << 20)["tiles"] == 4


def test_a_shrunk_image_is_a_mean():
    column = np.zeros((1, 320, 320), np.uint8)
    column[0, ::2] = 200
    assert (read_png(film("obs", column, 1 << 20)["frames"][0]) == 100).all()


def test_choices_by_hand():
    inputs = np.log(np.array([[0.2, 0.8], [0.5, 0.5]]))
    found = choices(np.array([1, 0]), inputs, np.log([0.8, 0.5]))
    np.testing.assert_allclose(found.values, [[0.2, 0.8], [0.5, 0.5]])
    assert (found.first, found.scores, found.taken.tolist()) == (0, False, [1, 0])
    assert choices(np.array([1, 0]), inputs, np.zeros(2)).scores  # drawn from something else: Q-values
    assert choices(np.array([1, 0]), inputs, np.full(2, np.nan)).scores
    assert probability_taken({"action_logp": np.log([0.25, 1.0])}).tolist() == [0.25, 1.0]
    assert probability_taken({"action_logp": np.full(2, np.nan)}) is None  # nobody knows it
    shifted = choices(np.array([6, 5]), inputs, None)  # Discrete(2, start=5)
    assert (shifted.first, shifted.taken.tolist(), shifted.scores) == (5, [1, 0], False)
    masked = choices(np.array([0]), np.array([[1.0, -1e9, -np.inf, np.nan]]), None)
    np.testing.assert_allclose(masked.values, [[1, 0, 0, 0]])
    assert choices(np.array([0.5]), inputs[:1], None) is None
    assert choices(np.array([5, 0]), inputs, None) is None  # further apart than there are choices


def test_gaps_infos_and_what_is_amiss(page, tmp_path):
    batch = steps(7, 10, rewards=np.array([1, np.nan] + [1] * 8, np.float32)).take(np.array([0, 1, 2, 6, 7, 8, 9]))
    text, _ = page(write(tmp_path / "x", batch))
    data = data_in(text)
    episode = data["episode-0-0"]
    assert unpack(episode["t"]).tolist() == [0, 1, 2, 6, 7, 8, 9]
    reward = unpack(lanes_in(episode)["reward"]["series"][0]["values"])
    assert np.isnan(reward).tolist() == [False, True] + [False] * 5
    assert data["overview"]["sources"][0]["episodes"]["notes"] == [["1 NaN in rewards", "3 steps missing (t 3-5)"]]
    assert data["overview"]["sources"][0]["episodes"]["return"] == [None]
    assert len(episode["infos"]["values"]) == 3 and unpack(episode["infos"]["index"]).tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_no_text_of_the_traces_becomes_markup(page, tmp_path):
    name = "<b>&'\"" + "</title><script>1"
    batch = steps("<i>", 5, **{"extra<script>": np.zeros(5)})
    text, _ = page(write(tmp_path / name.replace("/", "_"), batch))
    assert HOSTILE not in text and "<script>1" not in text and "<i>" not in text and "window.harmed" in text
    # The scripts that there are: data, which is never run, and the page's own, whose hash alone is allowed.
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert [kind for kind, _ in scripts] == [
        ' type="application/json" id="episode-0-0"',
        ' type="application/json" id="overview"',
        "",
    ]
    for _, content in scripts[:2]:
        assert not set("<>&\u2028") & set(content)
    digest = base64.b64encode(hashlib.sha256(scripts[2][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text
    assert data_in(text)["episode-0-0"]["infos"]["values"][0].count("window.harmed") == 2


def test_the_page_asks_for_nothing(page):
    text, _ = page(DATA / "image_lz4")
    without_data = re.sub(r"base64,[^\"]*|(?m:^\s*//.*$)", "", text)
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", without_data))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a namespace
    assert not re.search(r"<(link|img|iframe|script)[^>]*\s(src|href)=(?!\"data:)", text)
    assert "@import" not in text and "url(" not in text


def test_more_episodes_than_the_page_takes(page, tmp_path):
    folder = write(tmp_path / "x", *(steps(i, 4, rewards=np.full(4, i, np.float32)) for i in range(20)))
    text, notes = page(folder, "--embed", "5")
    (source,) = data_in(text)["overview"]["sources"]
    embedded = [i for i, key in enumerate(source["episodes"]["key"]) if key]
    assert len(source["episodes"]["id"]) == 20 and embedded == [0, 5, 9, 14, 19]
    assert notes == [f"{folder}: 5 of 20 episodes have their steps in the page, from the best return to the worst; "
                     "the others are listed"]  # fmt: skip
    assert data_in(text)["overview"]["notes"] == notes


def test_a_page_that_is_full(page, tmp_path, monkeypatch):
    monkeypatch.setattr("polylib.cli.report.STEP_BYTES", 20_000)
    text, notes = page(write(tmp_path / "x", *(steps(i, 50) for i in range(10))))
    count = sum(key is not None for key in data_in(text)["overview"]["sources"][0]["episodes"]["key"])
    assert 0 < count < 10
    assert notes[0].endswith(f"the page is full after {count} episodes; the others are listed")


def test_wide_observations_and_other_columns(page, tmp_path):
    batch = steps(1, 3, obs=np.zeros((3, 600), np.float32), state_in_0=np.ones((3, 2), np.float32))
    episode = data_in(page(write(tmp_path / "x", batch))[0])["episode-0-0"]
    assert "obs: 512 of its 600 components are in this page" in episode["notes"]
    lanes = lanes_in(episode)
    assert "obs[511]" in lanes and "obs[512]" not in lanes and "state_in_0[1]" in lanes
    assert [group["name"] for group in episode["groups"] if group["folded"]] == ["Other columns"]


def test_a_dict_observation_with_a_camera(page, tmp_path):
    obs = {"camera": images(5), "arm": (np.zeros((5, 2)), np.arange(5))}
    episode = data_in(page(write(tmp_path / "x", steps(1, 5, obs=obs)))[0])["episode-0-0"]
    assert [image["name"] for image in episode["images"]] == ["obs/camera"]
    assert {"obs/arm/0[0]", "obs/arm/0[1]", "obs/arm/1"} <= lanes_in(episode).keys()


def test_q_values_are_scores(page, tmp_path):
    q = np.array([[1.0, 5.0, 3.0]] * 4, np.float32)
    batch = steps(1, 4, actions=np.full(4, 1), action_dist_inputs=q, action_logp=np.zeros(4, np.float32))
    lanes = lanes_in(data_in(page(write(tmp_path / "x", batch))[0])["episode-0-0"])
    scores = lanes["action (score)"]
    assert scores["scores"] and unpack(scores["shades"])[:3].tolist() == [1, 5, 3]
    assert unpack(lanes["probability"]["series"][0]["values"]).tolist() == [1] * 4


def test_large_numbers_keep_their_digits(page, tmp_path):
    big = np.array([2**31, 2**40 + 1, 3])
    lanes = lanes_in(data_in(page(write(tmp_path / "x", steps(1, 3, ticks=big)))[0])["episode-0-0"])
    assert unpack(lanes["ticks"]["series"][0]["values"]).tolist() == big.tolist()


def test_infos_beyond_their_share(page, tmp_path, monkeypatch):
    monkeypatch.setattr("polylib.cli.report.encode._MAX_INFO_BYTES", 3000)
    infos = np.empty(50, object)
    infos[:] = [{"i": i, "pad": "x" * 100} for i in range(50)]
    found = data_in(page(write(tmp_path / "x", steps(1, 50, infos=infos)))[0])["episode-0-0"]["infos"]
    index = unpack(found["index"])
    assert (index < 0).sum() == 50 - len(found["values"]) > 10 and found["note"]


def test_two_folders(page, tmp_path):
    a, b = (write(tmp_path / name, steps(1, n), steps(2, n + 1)) for name, n in (("a", 3), ("b", 8)))
    data = data_in(page("--compare", a, b)[0])
    assert [source["letter"] for source in data["overview"]["sources"]] == ["A", "B"]
    assert {"episode-0-0", "episode-0-1", "episode-1-0", "episode-1-1"} < data.keys()
    assert ["steps", "7", "17", "+10"] in data["overview"]["comparison"]


def test_a_policy_beside_it(page, tmp_path):
    mode = next(mode for mode in reversed(MODES) if has(mode[0]))
    with small_ppo("CartPole-v1", mode, seed=3).build() as algo:
        algo.save(str(tmp_path / "checkpoint"))
        policy = algo.get_policy()
        obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
        out = policy.compute_actions(obs, explore=False)
        values, done = policy.compute_values(obs), np.where(np.arange(6) < 2, 1 - out.actions, out.actions)
        likely = np.exp(policy.compute_log_likelihoods(done, obs))
    batch = steps(1, 6, obs=obs, actions=done)
    del batch["action_dist_inputs"], batch["action_logp"]
    data = data_in(page(write(tmp_path / "x", batch), "--policy", tmp_path / "checkpoint")[0])
    lanes = lanes_in(data["episode-0-0"])
    assert data["overview"]["policy"] == f"{tmp_path / 'checkpoint'} (numpy)"
    assert data["overview"]["sources"][0]["episodes"]["agrees"] == [pytest.approx(4 / 6)]
    assert unpack(lanes["policy now"]["series"][0]["values"]).tolist() == out.actions.tolist()
    assert unpack(lanes["policy agrees"]["series"][0]["values"]).tolist() == [0, 0, 1, 1, 1, 1]
    np.testing.assert_allclose(unpack(lanes["p(action)"]["series"][0]["values"]), likely, rtol=1e-5)
    np.testing.assert_allclose(unpack(lanes["its value"]["series"][0]["values"]), values, rtol=1e-5)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/x.html", "there is no folder"),
        (".", "is a folder: give a file"),
    ],
)
def test_a_page_that_cant_be_written(call, tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    outcome = call("trace", str(DATA / "pendulum_sac"), "--html", path)
    assert outcome.status == 2 and outcome.error.startswith("--html: ") and message in outcome.error


def test_a_disk_that_fills_up_leaves_the_page_before(call, tmp_path, monkeypatch):
    (tmp_path / "x.html").write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polylib.cli.report.episode_data", full)
    outcome = call("trace", str(DATA / "pendulum_sac"), "--html", str(tmp_path / "x.html"))
    assert outcome.status == 2 and "No space left on device" in outcome.error
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"] and (tmp_path / "x.html").read_text() == "before"
