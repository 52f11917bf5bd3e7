"""What becomes of a model's text: nothing but the elements that Markdown needs, in linear time, streamed or not.

The page's own modules run in the page, under its policy.
"""

import random
from typing import Any

import pytest

from tests.api.live import Live, running
from tests.ui.browser import Browser
from tests.ui.conftest import base_of
from tests.ui.texts import HOSTILE, RICH, script

pytestmark = pytest.mark.server

ALLOWED = {
    *("a", "blockquote", "br", "button", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p"),
    *("pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
RENDER = """const [texts, cuts, done] = arguments;
import(new URL("ui/markdown.js", location.href)).then(({ Markdown }) => {
  const draw = (pieces) => {
    const root = document.createElement("div"), blocks = [];
    const markdown = new Markdown(root, (text) => blocks.push(text));
    for (const piece of pieces) { markdown.append(piece); markdown.draw(); }
    markdown.finish();
    return { html: root.innerHTML, text: root.textContent, blocks,
      tags: [...new Set([...root.querySelectorAll("*")].map((each) => each.localName))],
      attributes: [...new Set([...root.querySelectorAll("*")].flatMap((each) => each.getAttributeNames()))],
      links: [...root.querySelectorAll("a")]
        .map((each) => [each.getAttribute("href"), each.title, each.target, each.rel]) };
  };
  const cut = (text, size) => text.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
  done(texts.map((text) => cuts.map((size) => draw(size ? cut(text, size) : [text]))));
}).catch((error) => done(String(error)));"""
TAGS = """const [text, done] = arguments;
import(new URL("ui/markdown.js", location.href)).then(({ Markdown }) => {
  const root = document.createElement("div");
  const markdown = new Markdown(root);
  markdown.append(text);
  markdown.finish();
  done([...new Set([...root.querySelectorAll("*")].map((each) => each.localName))]);
}).catch((error) => done([String(error)]));"""
FRAGMENTS = [
    *("*", "**", "_", "__", "~~", "`", "``", "```", "~~~", "[", "]", "(", ")", "![", "](", "](https://a.b/c)"),
    *("<", ">", "<b>", "<!--", "&", "&amp;", "&lt;", "\\", "|", "---", "#", "##", ">>", "-", "1.", "2)", "+", ":"),
    *("word", "https://x.y/z?", "http://", "javascript:", "日本", "🙂", "\u2028", "\u202e", "<br>", "[x](data:a)"),
    *("<https://q.r>", "[ ]", "[x]", "\n", "\n\n", " ", "  ", "    ", "\t", "\r\n", "\n- ", "\n  - ", "\n> "),
    *("\n```\n", "\n| a | b |\n|---|---|\n", "| 1 | 2 |\n"),
]


@pytest.fixture(scope="module")
def renderer(chromium: Browser, rich: Live) -> Browser:
    """A page whose renderer is asked."""
    return chromium.open(base_of(rich))


def render(page: Browser, texts: list[str], *cuts: int) -> list[list[dict[str, Any]]]:
    """Each text as drawn in pieces of so many characters; 0 is in one piece."""
    found = page.driver.execute_async_script(RENDER, texts, list(cuts))
    assert isinstance(found, list), found
    return found


def html(page: Browser, text: str) -> str:
    """The HTML of one text."""
    return str(render(page, [text], 0)[0][0]["html"])


CASES = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo", "<p>one<br>two</p>"),
    ("a\n\nb", "<p>a</p><p>b</p>"),
    ("# Title #", "<h3>Title</h3>"),
    ("#hashtag", "<p>#hashtag</p>"),
    ("####### seven", "<p>####### seven</p>"),
    ("---", "<hr>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("***both***", "<p><em><strong>both</strong></em></p>"),
    ("snake_case_name and 2*3*4", "<p>snake_case_name and 2<em>3</em>4</p>"),
    ("**open", "<p>**open</p>"),
    ("a ** b **", "<p>a ** b **</p>"),
    ("**a*", "<p>*<em>a</em></p>"),
    ("*a __b *c d__ e*", "<p><em>a <strong>b *c d</strong> e</em></p>"),
    ("~~gone~~ ~kept~", "<p><del>gone</del> ~kept~</p>"),
    ("`a *b*` ``x`y``", "<p><code>a *b*</code> <code>x`y</code></p>"),
    ("`open", "<p>`open</p>"),
    (r"\*not\* \[this\]", "<p>*not* [this]</p>"),
    ("&lt;b&gt; &amp; &#65; &#x1F642; &nope;", "<p>&lt;b&gt; &amp; A 🙂 &amp;nope;</p>"),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("- a\n- b\n\n  c", "<ul><li>a</li><li>b<p>c</p></li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("- [ ] a\n- [x] b", "<ul><li>☐ a</li><li>☑ b</li></ul>"),
    ("1. a\n   - b\n     - c\n2. d", "<ol><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ol>"),
    ("Text:\n- a", "<p>Text:</p><ul><li>a</li></ul>"),
    ("In 2024\n7. is no list", "<p>In 2024<br>7. is no list</p>"),
    ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>"),
    ("a<br>b<BR/>c", "<p>a<br>b<br>c</p>"),
    ("![alt](javascript:x)", "<p>![alt](javascript:x)</p>"),
    ("[a](<javascript:x>)", "<p>[a](&lt;javascript:x&gt;)</p>"),
    ("[a]( java\tscript:x )", "<p>[a]( java\tscript:x )</p>"),
    ("[a](vbscript:x) [b](file:///etc) [c](//host) [d](ftp://x)", "<p>[a](vbscript:x) [b](file:///etc) [c](//host) [d](ftp://x)</p>"),
    ("[a][b] [c] []", "<p>[a][b] [c] []</p>"),
]  # fmt: skip


def test_cases(renderer: Browser) -> None:
    drawn = [each["html"] for (each,) in render(renderer, [text for text, _ in CASES], 0)]
    assert dict(zip([text for text, _ in CASES], drawn, strict=True)) == dict(CASES)


def test_code_blocks(renderer: Browser) -> None:
    for text, language, code in [
        ("```python\na = '<b>'\n\n# no heading\n```\n", "python", "a = '<b>'\n\n# no heading"),
        ("~~~\n```\n~~~", "text", "```"),
        ("````md\n```\nx\n```\n````", "md", "```\nx\n```"),
        ("```js\nnever ends", "js", "never ends"),
        ("    indented\n      more", "text", "indented\n  more"),
    ]:
        (drawn,) = render(renderer, [text], 0)[0]
        assert drawn["html"].startswith(f'<div class="code"><div class="code-bar"><span>{language}</span>'), text
        assert drawn["text"] == f"{language}Copy{code}", text
    assert "<li>a<div" in html(renderer, "1. a\n   ```\n   x\n   ```")


def test_tables(renderer: Browser) -> None:
    drawn = html(renderer, "| a | b |\n|:--|--:|\n| 1 | **2** |\n| `x` \\| y |\n\nafter")
    assert '<th class="start">a</th><th class="end">b</th>' in drawn
    assert '<td class="start">1</td><td class="end"><strong>2</strong></td>' in drawn
    assert '<tr><td class="start"><code>x</code> | y</td></tr>' in drawn
    assert drawn.endswith("<p>after</p>")
    assert html(renderer, "a | b\nnot | a table") == "<p>a | b<br>not | a table</p>"


LINKS = [
    ("[a *b*](https://x.y/z)", "https://x.y/z", "a b"),
    ('[a](https://x.y/z "title")', "https://x.y/z", "a"),
    ("[a](<https://x.y/a b>)", "https://x.y/a%20b", "a"),
    ("[a](https://x.y/f_(g))", "https://x.y/f_(g)", "a"),
    ("<mailto:a@b.c>", "mailto:a@b.c", "mailto:a@b.c"),
    ("See https://x.y/z_1?q=2.", "https://x.y/z_1?q=2", "See https://x.y/z_1?q=2."),
    ("(see https://x.y/f_(g))", "https://x.y/f_(g)", "(see https://x.y/f_(g))"),
    ("**https://x.y**", "https://x.y/", "https://x.y"),
    ("![a picture](https://x.y/z.png)", "https://x.y/z.png", "a picture"),
    ("![](https://x.y/z.png)", "https://x.y/z.png", "https://x.y/z.png"),
    ("[www.x.y](https://x.y/)", "https://x.y/", "www.x.y"),
    ("https://x.y:8080/z", "https://x.y:8080/z", "https://x.y:8080/z"),
    ("[\u200b](https://x.y/)", "https://x.y/", "\u200bhttps://x.y/"),
]
DECEPTIVE = [
    ("[https://good.example](https://evil.example)", "https://evil.example/", "https://good.example (evil.example)"),
    ("[a **http**s://good.example](https://x.y)", "https://x.y/", "a https://good.example (x.y)"),
    ("[good.example/login](https://evil.example)", "https://evil.example/", "good.example/login (evil.example)"),
    ("[h\u200bttps://good.example](https://x.y/)", "https://x.y/", "h\u200bttps://good.example (x.y)"),
    ("[\u202emoc.elpmaxe](https://evil.example)", "https://evil.example/", "\u202emoc.elpmaxe (evil.example)"),
    ("https://\u0430pple.com", "https://xn--pple-43d.com/", "https://\u0430pple.com (xn--pple-43d.com)"),
    ("[https://good.example](mailto:a@evil.example)", "mailto:a@evil.example", "https://good.example (a@evil.example)"),
]  # fmt: skip


def test_links(renderer: Browser) -> None:
    """They lead where their title says, in a page of their own, which learns nothing of this one."""
    expected = [
        (text, shown, [[href, href, "_blank", "noopener noreferrer"]]) for text, href, shown in LINKS + DECEPTIVE
    ]
    drawn = [each for (each,) in render(renderer, [text for text, *_ in expected], 0)]
    assert [(text, each["text"], each["links"]) for (text, *_), each in zip(expected, drawn, strict=True)] == expected


def test_a_name_before_the_host_makes_no_link(renderer: Browser) -> None:
    """It would look like the host."""
    texts = [
        "[a](https://good.example@evil.example)",
        "https://good.example@evil.example/",
        "<https://a:b@evil.example>",
    ]
    for text, (drawn,) in zip(texts, render(renderer, texts, 0), strict=True):
        assert (drawn["text"], drawn["links"]) == (text, [])


def test_a_picture_with_a_link_around_it(renderer: Browser) -> None:
    (drawn,) = render(renderer, ["[![alt](https://x.y/a.png) more](https://x.y/b)"], 0)[0]
    assert [link[0] for link in drawn["links"]] == ["https://x.y/b"]
    assert drawn["text"] == "alt more"


@pytest.mark.parametrize("seed", range(4))
def test_any_text_streamed_or_not_is_the_same_and_harmless(renderer: Browser, seed: int) -> None:
    """Blocks that were settled too early would differ from the whole; anything but a few elements would be a way in."""
    chance = random.Random(seed)
    texts = ["".join(chance.choices(FRAGMENTS, k=chance.randint(1, 60))) for _ in range(200)] + [RICH, HOSTILE]
    for text, drawn in zip(texts, render(renderer, texts, 0, 1, 7), strict=True):
        assert len({each["html"] for each in drawn}) == 1, text
        assert [each["blocks"] for each in drawn[1:]] == [drawn[0]["blocks"]] * 2, text
        assert set(drawn[0]["tags"]) <= ALLOWED, text
        assert set(drawn[0]["attributes"]) <= {
            "class",
            "href",
            "title",
            "target",
            "rel",
            "start",
            "tabindex",
            "type",
            "aria-label",
        }
        assert all(href.split(":")[0] in ("http", "https", "mailto") for href, *_ in drawn[0]["links"]), text


ENDLESS = {
    "stars": "*" * 100_000,
    "stars and spaces": "* " * 50_000,
    "openers": "*a " * 33_000,
    "nested": "*_" * 25_000 + "x" + "_*" * 25_000,
    "pairs": "*a*" * 33_000,
    "two kinds": "*a_b" * 25_000,
    "brackets": "[" * 100_000,
    "closing brackets": "[" * 50_000 + "]" * 50_000,
    "half links": "[a](" * 25_000,
    "links without end": "](a" * 33_000 + ")",
    "pictures": "![a](https://x.y/" * 6_000,
    "backticks": "`" * 100_000,
    "runs of backticks": "".join("`" * (number % 300) + " " for number in range(650)),
    "fences": "```\n" * 25_000,
    "a fence with a line separator": "`" * 50_000 + "a" * 50_000 + "\u2028",
    "a heading with a line separator": "# " + " " * 50_000 + "\u2028" + "x",
    "quotes": ">" * 100_000,
    "lists": "- " * 50_000,
    "deeper and deeper": "".join("  " * number + "- x\n" for number in range(300)),
    "angles": "<" * 100_000,
    "half addresses": "<http://" * 12_000,
    "bad addresses": "http://%" * 12_000,
    "entities": "&#" * 50_000,
    "backslashes": "\\" * 100_000,
    "a table": "|" * 50_000 + "\n" + "|-" * 25_000,
    "short rows of a wide table": "|a" * 10_000 + "\n" + "|-" * 10_000 + "\n" + "|\n" * 10_000,
    "addresses in brackets": ("[](" * 300 + " )") * 110,
    "a carriage return": "\r" * 100_000,
    "bidirectional signs": "\u202e\u2066\u202c" * 33_000,
    "zero widths": "\u200b*" * 50_000,
    "nothings": "\0" * 100_000,
    "rows": "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 9_000,
    "rules": "---\n" * 25_000,
    "white space": " " * 100_000 + "x",
    "tabs": "\t" * 100_000 + "x",
    "hashes": "# " * 50_000,
    "a long word": "a" * 100_000,
}


def test_no_text_takes_for_ever(renderer: Browser) -> None:
    """A quadratic step would take minutes for a hundred thousand characters; the driver waits for seconds."""
    for name, text in ENDLESS.items():
        tags = renderer.driver.execute_async_script(TAGS, text)
        assert set(tags) <= ALLOWED, (name, tags)


def test_what_a_model_says_is_never_run(page: Browser, starter_path: Any) -> None:
    with running(starter_path, fake={"step": 0.002, "script": script(starter_path, HOSTILE)}) as server:
        page.open(base_of(server)).say(HOSTILE)
        answer = page.answer()
        assert "<script>window.pwned = 1</script>" in answer.text
        assert '<img src=x onerror="window.pwned = 2">' in answer.text
        assert "<script>window.pwned = 1</script>" in page.text(".message.user")
        assert page.js("return window.pwned") is None
        inside = page.js("return [...document.querySelectorAll('#log *')].map((each) => each.localName)")
        assert not set(inside) & {"script", "img", "iframe", "style", "svg", "base", "object", "embed", "form", "link"}
        links = {each.get_attribute("href") for each in page.all("#log a")}
        assert links == {"https://example.com/?a=1&b=2", "https://example.com/a.png", "https://example.com/"}
        page.click(".message.assistant button", "Raw")
        assert page.text(".raw").strip() == HOSTILE.strip()
        # A click on what couldn't be a link does nothing either.
        page.js("for (const each of document.querySelectorAll('.markdown *')) if (each.localName !== 'a') each.click()")
        assert page.js("return window.pwned") is None
        page.behaved()


def test_the_policy_stops_what_the_page_would_not(page: Browser, rich: Live) -> None:
    """Were there a hole in the renderer, the browser would still run nothing: trusted types, and no inline scripts."""
    page.open(base_of(rich))
    blocked = page.js(
        """try { document.body.innerHTML = "<b>x</b>"; return "taken"; } catch (error) { return error.name; }"""
    )
    assert blocked == "TypeError"
    handler = """const a = document.createElement("a");
        try { a.setAttribute("onclick", "window.pwned = 1"); } catch (error) { return error.name; }
        document.body.append(a); a.click(); return "taken";"""
    assert page.js(handler) == "TypeError"
    assert page.js("return window.pwned") is None
    assert any("requires 'TrustedHTML' assignment" in line for line in page.console())
