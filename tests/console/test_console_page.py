"""The console in a real browser."""

from __future__ import annotations

import re
import time
from functools import partial

from playwright.sync_api import Page, expect

from tidegate.errors import Outcome
from tidegate.testing.stage import Served

OUT_OF_PLACE = "undefined|NaN|null"


def test_the_cluster_is_seen_and_kept_current(served: Served, page: Page) -> None:
    served.do(lambda: served.ready(lambda number: 0.62), served.pass_second, lambda: served.serve(20))
    page.goto(served.url)
    tile = page.get_by_role("button", name="tide-1, ready, KV 62 %, 4 running, 1 waiting")
    expect(tile).to_be_visible()
    expect(page.get_by_role("status").first).to_have_text("All models served")
    served.beat()
    expect(page.locator("#figures")).to_contain_text("TTFT P99")
    expect(page.locator("#ends tbody tr").first).to_contain_text("completed")
    expect(page.locator("#tenants tbody tr").first).to_contain_text("acme")
    served.do(lambda: served.sample(0, 0.97), lambda: served.gateway.probed(served.instances[1], False))
    served.beat()
    expect(page.get_by_role("button", name="tide-1, ready, KV 97 %")).to_have_class(re.compile("high"))
    expect(page.get_by_role("button", name=f"{served.instances[1].name}, ejected")).to_be_visible()
    expect(page.locator("#events li").first).to_contain_text("ejected, was ready")
    expect(page.get_by_role("button", name="ejected 1")).to_be_visible()
    assert not re.search(OUT_OF_PLACE, page.inner_text("body"))


def test_what_an_engine_does_not_say_is_unknown_and_never_zero(served: Served, page: Page) -> None:
    served.do(lambda: served.ready(lambda number: None), lambda: served.sample(0, None, None, None), served.pass_second)
    page.goto(served.url)
    tile = page.get_by_role("button", name="tide-1, ready, KV unknown, – running, – waiting")
    expect(tile).to_have_class(re.compile("unknown"))
    tile.click()
    expect(page.locator("#details")).to_contain_text("unknown")
    expect(page.locator("#figures div", has_text="KV used")).to_contain_text("–")
    expect(page.locator("#figures div", has_text="TTFT P99")).to_contain_text("–")


def test_the_flood_shows(served: Served, page: Page) -> None:
    served.do(served.ready, served.pass_second)
    page.goto(served.url)
    for _ in range(3):
        served.do(lambda: served.serve(10, ttft_s=2.5), lambda: served.serve(5, outcome=Outcome.OVERLOADED))
        served.beat()
    expect(page.locator("#figures .bad")).to_have_count(2)
    expect(page.locator("#figures div", has_text="Refused")).to_contain_text("33 %")
    expect(page.locator("#ends")).to_contain_text("overloaded")
    expect(page.locator("#events")).to_contain_text("Requests are refused for want of room")
    expect(page.locator("#events")).to_contain_text("First tokens are late: P99 2.5 s")
    expect(page.locator("#charts figure")).to_have_count(6)
    assert page.locator("#charts .limit").count() == 2


def test_everything_is_reached_from_the_keyboard(served: Served, page: Page) -> None:
    served.do(served.ready, served.pass_second)
    page.goto(served.url)
    expect(page.locator(".tile").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the cluster map")).to_be_focused()
    page.locator('.tile[tabindex="0"]').focus()
    page.keyboard.press("End")
    last = page.locator(".tile").last
    expect(last).to_be_focused()
    page.keyboard.press("Enter")
    expect(last).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#details")).to_contain_text(served.instances[-1].name)
    served.beat()
    expect(last).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#details")).to_be_hidden()
    page.keyboard.press("Home")
    expect(page.locator(".tile").first).to_be_focused()
    chart = page.get_by_role("img", name=re.compile("^Time to first token, last 15 minutes"))
    chart.focus()
    page.keyboard.press("Home")
    expect(page.locator("#charts figure", has_text="Time to first token").locator("output")).to_contain_text("P99")


def test_every_control_has_a_name(served: Served, page: Page) -> None:
    served.do(served.ready, served.pass_second)
    page.goto(served.url)
    expect(page.locator(".tile").first).to_be_visible()
    for role in ("button", "combobox", "searchbox", "img", "log", "table"):
        assert page.get_by_role(role).count() > 0 or role == "table", role
        for control in page.get_by_role(role).all():
            snapshot = control.aria_snapshot()
            assert '"' in snapshot or role in ("table",), snapshot


def test_chinese_and_dark_are_kept(served: Served, page: Page) -> None:
    served.do(served.ready, served.pass_second)
    page.goto(served.url)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Language").select_option("zh")
    expect(page.get_by_role("heading", name="集群")).to_be_visible()
    expect(page.get_by_role("button", name="tide-1，就绪，KV 50 %")).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_label("主题").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.reload()
    expect(page.get_by_role("heading", name="集群")).to_be_visible()
    assert page.evaluate("document.documentElement.className") == "dark"
    page.get_by_label("语言").select_option("en")
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()


def test_both_languages_have_every_word(served: Served, page: Page) -> None:
    page.goto(served.url)
    source = page.evaluate("fetch('words.js').then((answer) => answer.text())")
    english, chinese = (
        set(re.findall(r"(?:^|[ ,{])([a-z]\w*): \"", source.split(f"const {name} = {{")[1].split("\n};")[0]))
        for name in ("en", "zh")
    )
    assert english == chinese
    assert {f"o_{outcome.value}" for outcome in Outcome} <= english


def test_a_thousand_instances_are_one_screen(browser: object, page: Page) -> None:
    with Served(1000) as served:
        served.do(lambda: served.ready(lambda number: number % 100 / 100), served.pass_second)
        page.goto(served.url)
        expect(page.locator(".tile")).to_have_count(1000)
        last = page.locator(".tile").last
        expect(last).to_have_attribute("aria-label", re.compile("KV 99 %"))
        began = time.monotonic()
        served.do(lambda: served.ready(lambda number: 0.11))
        served.beat()
        expect(last).to_have_attribute("aria-label", re.compile("KV 11 %"))
        print(f"a thousand tiles changed {time.monotonic() - began:.2f} s after the scrape")
        page.get_by_role("searchbox").fill("ebb-77")
        expect(page.locator(".tile:visible")).to_have_count(10)
        page.get_by_role("searchbox").fill("")
        served.do(*(partial(served.gateway.probed, instance, False) for instance in served.instances[:20]))
        served.beat()
        expect(page.locator("#events li").first).to_contain_text("20 instances: ejected")
        page.get_by_role("button", name="ejected 20").click()
        expect(page.locator(".tile:visible")).to_have_count(20)


def test_the_page_comes_back_with_the_gateway(page: Page) -> None:
    with Served(4) as served:
        served.do(served.ready, served.pass_second)
        port = served.port
        page.goto(served.url)
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).to_contain_text("connection lost")
    again = Served(2)
    again.port = port
    with again:
        again.do(again.ready, again.pass_second)
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator(".tile")).to_have_count(2)
