"""The tables and numbers of the pages are those of the kept rows."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def result_rows() -> ModuleType:
    """Return the site's module that draws tables."""
    path = ROOT / "docs" / "extensions" / "result_rows.py"
    spec = importlib.util.spec_from_file_location("result_rows", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["result_rows"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(result_rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, beside three rows of one variant and one of another."""
    attacks = [
        {"attack": "decoder", "knowledge": knowledge, "budget": budget, "mse": mse}
        for knowledge, budget, mse in (("held-out", 1.0, 0.04), ("held-out", 4.0, 0.03))
    ]
    kept = [
        {"variant": "a", "title": "first", "seed": seed, "accuracy": 0.9 + 0.01 * seed}
        | {"scores": {"nll": seed}, "attacks": attacks}
        for seed in (0, 1, 2)
    ]
    kept.append(
        {"variant": "b", "title": "second", "seed": 0, "accuracy": 0.5, "scores": {"nll": 0.25}}
    )
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    monkeypatch.setattr(result_rows, "RESULTS", tmp_path)
    result_rows.read_rows.cache_clear()
    return result_rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_what_their_rows_give(page: Path, result_rows: ModuleType) -> None:
    """Each quoted number that is marked, each table that is kept or drawn."""
    result_rows.read_rows.cache_clear()
    result_rows.draw_results(page.read_text(), page.name)


def test_a_table_has_a_line_for_each_group(rows: ModuleType) -> None:
    """Means with t-intervals from three rows on, keys within keys, own names and headings."""
    comment = """<!-- rows kept.json
by: variant
label: title
heads: [what]
names: {second: other}
columns: [accuracy, {key: scores.nll, head: NLL, digits: 2}]
order: accuracy
-->
"""
    assert rows.draw_tables(comment, "page") == (
        "| what | accuracy, % | NLL |\n| --- | --- | --- |\n"
        "| other | 50.0 | 0.25 |\n| first | 91.0 ± 2.5 | 1.00 ± 2.48 |\n"
    )


@pytest.mark.parametrize("text", ["91.0 ± 2.5", "91.0 +- 2.5", "91.0", "91.0 %"])
def test_a_quoted_number_stays_alone(rows: ModuleType, text: str) -> None:
    """With its interval or without."""
    prose = f"It is [{text}](row:kept.json?variant=a#accuracy)."
    assert rows.draw_results(prose, "page") == f"It is {text}."


@pytest.mark.parametrize(
    "prose",
    [
        "[91.1](row:kept.json?variant=a#accuracy)",
        "[91.0 ± 2.4](row:kept.json?variant=a#accuracy)",
        "[91.0](row:kept.json?variant=c#accuracy)",
        "[91.0](row:kept.json?variant=a#nll)",
    ],
)
def test_a_stale_number_is_refused(rows: ModuleType, prose: str) -> None:
    """A wrong value, a wrong interval, no such row, no such measure."""
    with pytest.raises(rows.StaleNumberError, match="page"):
        rows.draw_results(prose, "page")


def test_a_kept_table_is_compared_and_renewed(rows: ModuleType) -> None:
    """As the README has it, for readers who see the file alone."""
    comment = "<!-- rows kept.json\nby: variant\ncolumns: [accuracy]\nonly: [b]\n-->\n"
    table = "| variant | accuracy, % |\n| --- | --- |\n| b | 50.0 |\n"
    good = f"{comment}{table}<!-- end -->\n"
    assert rows.draw_tables(good, "page") == good
    bad = good.replace("50.0", "51.0")
    with pytest.raises(rows.StaleNumberError):
        rows.draw_tables(bad, "page")
    assert rows.draw_tables(bad, "page", renew=True) == good


@pytest.mark.parametrize(
    "request_lines",
    [
        "by: variant\ncolumns: [nothing]",
        "by: variant\ncolumns: [accuracy]\nonly: [z]",
        "by: variant",
    ],
)
def test_a_wrong_request_names_page_and_file(rows: ModuleType, request_lines: str) -> None:
    """An unknown measure, an unknown variant, no columns."""
    with pytest.raises(ValueError, match=r"page: table of kept\.json"):
        rows.draw_tables(f"<!-- rows kept.json\n{request_lines}\n-->\n", "page")


def test_a_table_has_a_column_for_each_value(rows: ModuleType) -> None:
    """Of one key; what has no row is a dash."""
    kept = [
        {"rule": rule, "hostile": hostile, "accuracy": accuracy}
        for rule, hostile, accuracy in (("mean", 0, 0.9), ("mean", 1, 0.1), ("krum", 0, 0.7))
    ]
    (rows.RESULTS / "crossed.json").write_text(json.dumps(kept))
    comment = "<!-- rows crossed.json\nby: hostile\nacross: rule\ncolumns: [accuracy]\n-->\n"
    assert rows.draw_tables(comment, "page") == (
        "| hostile | mean | krum |\n| --- | --- | --- |\n| 0 | 90.0 | 70.0 |\n| 1 | 10.0 | – |\n"
    )
    comment = comment.replace("[accuracy]", "[accuracy, {key: accuracy, head: share}]")
    assert rows.draw_tables(comment, "page").startswith(
        "| hostile | mean: accuracy, % | mean: share | krum: accuracy, % | krum: share |\n"
    )


def test_a_quoted_number_says_its_form(rows: ModuleType) -> None:
    """Of a measure that reports do not know, and with other decimals than they show."""
    prose = "[1.0](row:kept.json?variant=a&digits=1#scores.nll), "
    prose += "[50](row:kept.json?variant=b&digits=0#accuracy)"
    assert rows.draw_results(prose, "page") == "1.0, 50"
    (rows.RESULTS / "speed.json").write_text('[{"what": "a round", "ratio": 0.974}]')
    prose = "[97.4 %](row:speed.json?what=a+round&digits=1&scale=100#ratio)"
    assert rows.draw_results(prose, "page") == "97.4 %"
    with pytest.raises(rows.StaleNumberError):
        rows.draw_results(prose.replace("97.4", "97.5"), "page")


def test_a_share_of_trials_stays_within_all(rows: ModuleType) -> None:
    """19 of 24 in three rows of eight: Wilson's interval, worked out by hand; no t-interval."""
    shares = [{"variant": "a", "seed": s, "share": n / 8} for s, n in enumerate((5, 6, 8))]
    (rows.RESULTS / "shares.json").write_text(json.dumps(shares))
    query = "row:shares.json?variant=a&trials=8&scale=100&digits=0#share"
    assert rows.draw_results(f"[79, 60 to 91 %]({query})", "page") == "79, 60 to 91 %"
    assert rows.draw_results(f"[79]({query})", "page") == "79"
    for wrong in (f"[79, 60 to 92]({query})", f"[79]({query.replace('trials=8', 'trials=7')})"):
        with pytest.raises(rows.StaleNumberError):
            rows.draw_results(wrong, "page")


def test_the_variants_of_a_scenario_are_rows(rows: ModuleType) -> None:
    """As `fedcel tune` wrote them."""
    comment = "<!-- rows defences.toml\nby: name\nonly: [none]\ncolumns: [tuned.accuracy]\n-->\n"
    assert "| none | 98.0 |" in rows.draw_tables(comment, "page")


def test_an_attack_is_named_by_its_budget(rows: ModuleType) -> None:
    """The usual effort unless another is asked for; what was not carried out is no number."""
    prose = "[0.0400](row:kept.json?variant=a#attacks.decoder.mse)"
    assert rows.draw_results(prose, "page") == "0.0400"
    prose = "[0.0300](row:kept.json?variant=a#attacks.decoder:held-out:4.mse)"
    assert rows.draw_results(prose, "page") == "0.0300"
    with pytest.raises(rows.StaleNumberError):
        rows.draw_results("[0.0400](row:kept.json?variant=a#attacks.rmle.mse)", "page")


def test_a_lower_budget_stands_in_for_the_usual_one(result_rows: ModuleType) -> None:
    """A higher one does not: it is asked for."""
    attacks = [{"attack": "search", "knowledge": "held-out", "budget": b} for b in (0.3, 4.0)]
    assert result_rows.find_attack(attacks, "search") == attacks[0]
    assert result_rows.find_attack(attacks[1:], "search") is None
    assert (
        result_rows.find_attack([*attacks, attacks[0] | {"budget": 1.0}], "search")["budget"] == 1
    )


def test_differences_are_paired_by_seed(rows: ModuleType) -> None:
    """In prose and beside a table's columns; the line compared with has none."""
    prose = "[-40.0](row:kept.json?variant=b&against.variant=a#accuracy)"
    assert rows.draw_results(prose, "page") == "-40.0"
    comment = """<!-- rows kept.json
by: variant
columns: [accuracy]
only: [[b], a]
against: a
compare: [accuracy]
-->
"""
    assert rows.draw_tables(comment, "page") == (
        "| variant | accuracy, % | accuracy, %: difference |\n| --- | --- | --- |\n"
        "| b | 50.0 | -40.0 |\n| a | 91.0 ± 2.5 |  |\n"
    )


def test_rows_of_one_seed_are_not_paired(result_rows: ModuleType) -> None:
    """Two rows of a seed on one side: which of them is meant is not guessed."""
    rows = [{"seed": 0, "nll": 1}, {"seed": 0, "nll": 2}]
    with pytest.raises(ValueError, match="same seed"):
        result_rows.subtract_rows(rows, rows[:1], "nll")


def read_cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


MATCHED = "variant=plain&loss=5&against=noise#bits-beyond-label"


def test_a_quote_at_matched_accuracy_is_the_tables(result_rows: ModuleType) -> None:
    """Value and interval over seeds and images, difference, mean over losses: as they are drawn."""
    file = "frontier-faces.json"
    request = f"<!-- matched {file}\nloss: 5\nonly: [plain]\nagainst: noise\n-->\n"
    table = result_rows.draw_tables(request, "page")
    difference = read_cells(table)[0][2]
    assert result_rows.draw_results(f"[{difference}](matched:{file}?{MATCHED})", "page")
    both = result_rows.draw_tables(
        request.replace("-->", "columns: [bits-beyond-label]\ncompare: [bits-beyond-label]\n-->"),
        "page",
    )
    _, bits, beside = read_cells(both)[0]
    assert beside == difference
    query = "variant=plain&loss=5#bits-beyond-label"
    assert result_rows.draw_results(f"[{bits}](matched:{file}?{query})", "page") == bits
    areas = result_rows.draw_tables(request.replace("loss", "over"), "page")
    over = read_cells(areas)[0][3]
    query = MATCHED.replace("loss", "over")
    assert result_rows.draw_results(f"[{over}](matched:{file}?{query})", "page") == over


def test_a_bound_is_quoted_as_one(result_rows: ModuleType) -> None:
    """The sign or its words; without either it would be read as a measurement."""
    link = "matched:frontier-faces.json?variant=plain&loss=5#bits-beyond-label"
    bits = result_rows.quote_match(
        "frontier-faces.json", {"variant": "plain", "loss": "5"}, "bits-beyond-label"
    )
    assert bits.startswith("≤ ")
    assert result_rows.draw_results(f"[{bits}]({link})", "page") == bits
    words = bits.replace("≤", "at most")
    assert result_rows.draw_results(f"[{words}]({link})", "page") == words
    with pytest.raises(result_rows.StaleNumberError):
        result_rows.draw_results(f"[{bits.removeprefix('≤ ')}]({link})", "page")


def test_a_mapping_of_records_is_rows_with_names(rows: ModuleType, tmp_path: Path) -> None:
    """As beside pictures; what is no record of it is no row. A quoted measure says its decimals."""
    (tmp_path / "map.json").write_text(json.dumps({"sigma": 0.4, "a": {"pace": 12.3}, "b": {}}))
    table = rows.draw_rows("map.json", by="name", columns=[{"key": "pace", "digits": 0}])
    assert table.splitlines()[2:] == ["| a | 12 |", "| b | – |"]
    quoted = "[12](row:map.json?name=a&digits=0#pace)"
    assert rows.draw_results(quoted, "page") == "12"
    with pytest.raises(rows.StaleNumberError):
        rows.draw_results(quoted.replace("12", "13"), "page")
