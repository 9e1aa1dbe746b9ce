"""The pages: every link leads somewhere, every command is one that runs."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedcel.settings import describe_settings, parse_settings
from published_tables import TABLES
from sims.bench import scenario
from sims.commands.main import app
from sims.overrides import parse_overrides

CLI = typer.main.get_command(app)
ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    CHANGELOG,
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
]
SHELL = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(?=(?:fedcel|make|python -m) |python docs/)"
)
"""What may stand before the program."""
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")
REMOVED = set(re.findall(r"^- `fedcel ([a-z]+)` is now", CHANGELOG.read_text(), re.MULTILINE))
REMOVED |= {"--charts", "--head", "--hub-folder", "--live"}
"""Commands and options of earlier versions, named in their changelog."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read_page(page: Path) -> str:
    """Return a page's text; of a notebook its cells, those of code between fences."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(f"```\n{text}\n```" if is_code else text for text, is_code in texts)


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as Git hosts make them."""
    text = FENCE.sub("", read_page(page))
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def commands(page: Path) -> list[list[str]]:
    """Return the words of every line and code span of a page that runs fedcel, make or a module."""
    text = read_page(page)
    lines = text.replace("\\\n", " ").splitlines()
    spans = [" ".join(one.split()) for one in SPAN.findall(FENCE.sub("", text))]
    parts = [*map(str.strip, lines), *(part for one in spans for part in one.split("; "))]
    shell = [SHELL.sub("", part) for part in parts if SHELL.match(part)]
    return [shlex.split(part.split(" | ")[0].rstrip("&"), comments=True) for part in shell]


def names(command: click.Command) -> set[str]:
    """Return all that a command and those below it call commands and options."""
    found = {name for parameter in command.params for name in parameter.opts if name[0] == "-"}
    found |= {"--help"}
    for name, inner in getattr(command, "commands", {}).items():
        found |= {name, *names(inner)}
    return found


def find_command(script: Path) -> click.Command | None:
    if script.parent != ROOT / "docs" / "research" / "scripts":
        return None
    app = getattr(importlib.import_module(script.stem), "app", None)
    return app and typer.main.get_command(app)


def parsed(command: click.Command, words: list[str]) -> dict[str, Any]:
    """Return the parameters that a command line sets, by the command line's own parser."""
    rest = words
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.commands[name]
    return command.make_context("fedcel", rest).params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading where one is named."""
    for link in LINK.findall(FENCE.sub("", read_page(page))):
        if link.startswith(("http:", "https:", "row:", "matched:")):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if heading:
            assert heading in anchors(target), f"{page.name} links to {link}"


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope")  # `temperature` is a study
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_run(page: Path) -> None:
    """Parsed by the command line itself; scenarios, variants, settings, make targets are there.

    Where a page but names a command (`fedcel ledger verify`), command and option are there.
    """
    known_names = names(CLI)
    for program, *words in commands(page):
        if program == "make":
            assert {word for word in words if "=" not in word} <= TARGETS
            continue
        if program == "python":
            path, *words = words
            if path == "-m":
                assert importlib.util.find_spec(words[0]), f"{page.name} runs {words[0]}"
                continue
            assert (ROOT / path).exists(), f"{page.name} runs {path}"
            command = find_command(ROOT / path)
        elif page == CHANGELOG and REMOVED.intersection(words):
            continue
        else:
            command = CLI
        if command is None or set(words) <= known_names:
            continue
        words = ["1" if word == "N" else word for word in words]
        options = parsed(command, words)
        given = parse_overrides(options.get("assignments"))
        settings = {key: value for key, value in given.items() if key != "bench.seeds"}
        name = options.get("scenario", "")
        is_own = name.endswith(".toml") and (ROOT / name).is_file()
        if is_own or name in scenario.list_packaged():
            plan = scenario.read_scenario(str(ROOT / name) if is_own else name)
            chosen = options.get("variant") or plan.variants[0].name
            (variant,) = (v for v in plan.variants if v.name == chosen)
            parse_settings(plan.settings, variant.settings, settings)
        else:
            parse_settings(settings)
            assert not name or "/" in name or name.endswith(".toml") or name.isupper(), name


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope")
def test_commands_in_tables_are_found(tmp_path: Path) -> None:
    """Those of the published tables run, as the page shows them."""
    page = tmp_path / "reproduce.md"
    page.write_text("\n".join(f"`{c}`" for table in TABLES.values() for c in table.commands))
    programs = {program for program, *_ in commands(page)}
    assert programs == {"fedcel", "make", "python"}
    test_commands_are_ones_that_run(page)


def test_the_changelog_has_no_links_into_the_repository() -> None:
    """On the site it is a page of another folder, where they lead nowhere."""
    links = LINK.findall(FENCE.sub("", (ROOT / "CHANGELOG.md").read_text()))
    assert [link for link in links if not link.startswith(("http:", "https:"))] == []


def test_settings_that_pages_name_exist() -> None:
    """`group.key` in backticks, of a group of settings, is a key; what was removed is none."""
    known = {setting.key for setting in describe_settings()}
    groups = {key.partition(".")[0] for key in known if "." in key}
    text = read_page(CHANGELOG)
    removed = set(re.findall(r"^- `([a-z]+\.[a-z0-9-]+)`:", text, re.MULTILINE))
    _, _, section = text.partition("### Removed settings")
    for names in re.findall(
        r"^- ((?:`[a-z]+\.[a-z0-9-]+`,? ?)+)", section.partition("###")[0], re.M
    ):
        removed |= set(re.findall(r"[a-z]+\.[a-z0-9-]+", names))
    assert not removed & known
    for page in PAGES:
        for named in re.findall(r"`([a-z]+\.[a-z0-9-]+)(?:[ `=])", read_page(page)):
            group, _, key = named.partition(".")
            if group in groups and key not in ("py", "json", "toml", "safetensors"):
                told = known | removed if page == CHANGELOG else known
                assert named in told, f"{page.name} names {named}"


def test_examples_of_docstrings() -> None:
    """Those that a docstring shows give what it says."""
    import fedcel.settings.parsing

    failed, tried = doctest.testmod(fedcel.settings.parsing)
    assert tried and not failed


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_line_begins_with_a_percent_sign(page: Path) -> None:
    """The site takes such a line for a comment and leaves it out."""
    assert re.findall(r"^ *%.*", FENCE.sub("", read_page(page)), re.MULTILINE) == []


def test_a_formula_shows_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the converter does not know would stand on the page with its backslash."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    mathml = importlib.import_module("mathml")
    assert "&#x02016;" in mathml.convert_formula(r"\left\|z\right\|")
    for tex in (r"\Big\|z\Big\|", r"\foo z"):
        with pytest.raises(ValueError, match="not converted"):
            mathml.convert_formula(tex)


def test_the_readme_is_short_and_begins_with_its_two_commands() -> None:
    """What a visitor reads before anything else."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 650
    (first, *_) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^make \S+", first, re.MULTILINE) == ["make demo", "make test"]
    assert text.index(first) < text.index("## ")


def test_the_six_lines_of_the_readme_run() -> None:
    """As they stand; they print what an encoder leaks."""
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert sum(bool(line) for line in program.splitlines()) == 6
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, names)
    assert printed.getvalue() == f"{names['leak']}\n"
    assert 0 < names["leak"].bits_beyond_label < names["leak"].cap_beyond_label


def test_terms_of_the_glossary_stand_in_order_and_once() -> None:
    """So that one finds them by eye; each is explained in one sentence."""
    text = (ROOT / "docs" / "concepts" / "glossary.md").read_text()
    terms: list[str] = []
    for section in text.split("\n## ")[1:]:
        entries = re.findall(r"^- \*\*(.+?)\*\*([^:]*): (.+(?:\n  .+)*)", section, re.MULTILINE)
        names = [name for name, *_ in entries]
        assert names == sorted(names, key=str.lower), section.partition("\n")[0]
        assert all(explained.endswith(".") for *_, explained in entries)
        terms += names
    assert len(terms) == len(set(terms)) > 50
