"""The pages: every link leads somewhere, every command is one that runs."""

import re
import shlex
from pathlib import Path

import pytest

from fedcel.settings import flatten, parse
from sims import cli, overrides, scenario

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(?=(?:fedcel|make) )")
"""What may stand before the program."""
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as Git hosts make them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def commands(page: Path) -> list[list[str]]:
    """Return the words of every line of a page that runs fedcel or make."""
    lines = page.read_text().replace("\\\n", " ").splitlines()
    shell = [SHELL.sub("", line.strip()) for line in lines if SHELL.match(line.strip())]
    return [shlex.split(line.split(" | ")[0].rstrip("&"), comments=True) for line in shell]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading where one is named."""
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:")):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if heading:
            assert heading in anchors(target), f"{page.name} links to {link}"


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope")  # `temperature` is a study
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_run(page: Path) -> None:
    """Parsed by the command line itself; scenarios, variants, settings, make targets are there."""
    for program, *words in commands(page):
        if program == "make":
            assert {word for word in words if "=" not in word} <= TARGETS
            continue
        options = cli.parser().parse_args(words)
        given = overrides.overrides(options) if hasattr(options, "set") else {}
        parse({key: value for key, value in given.items() if key != "bench.seeds"})
        name = getattr(options, "scenario", "")
        if name in scenario.packaged():
            known = {variant.name for variant in scenario.read(name).variants}
            assert getattr(options, "variant", None) in {None, *known}
        else:
            assert not name or "/" in name or name.endswith(".toml") or name.isupper(), name


def test_settings_that_pages_name_exist() -> None:
    """`group.key` in backticks, of a group of settings, is one of its keys."""
    from fedcel.settings import Settings, dump

    known = set(flatten(dump(Settings())))
    groups = {key.partition(".")[0] for key in known if "." in key}
    for page in PAGES:
        for named in re.findall(r"`([a-z]+\.[a-z0-9-]+)(?:[ `=])", page.read_text()):
            group, _, key = named.partition(".")
            if group in groups and key not in ("py", "json", "toml", "safetensors"):
                assert named in known, f"{page.name} names {named}"
