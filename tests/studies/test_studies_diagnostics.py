"""Studies of the judge: what their findings say, and the pages that are filled with stored reports."""

import numpy as np

from benchmarks._shared.study import parser
from benchmarks.diagnostics import stored_reports, verdict_calibration


def test_a_page_gets_what_is_stored_and_keeps_the_rest():
    page = (
        "before\n<!-- digits: made by x -->\nold\nlines\n<!-- end of digits -->\nbetween\n"
        "<!-- diabetes: made by x -->\nkept\n<!-- end of diabetes -->\n"
    )
    new = stored_reports.filled(page, {"digits": "a \\1 b", "elsewhere": "not shown"})
    assert new == page.replace("old\nlines", "a \\1 b")
    assert stored_reports.filled(new, {"digits": "old\nlines"}) == page


def test_the_report_is_cut_out_of_what_the_main_job_prints():
    output = (
        "digits: 3 rows\n    Scores on 450 test rows   \n| MAP |\nVerdict: x\nAll of it: /a/b\n"
    )
    assert stored_reports.printed(output) == "    Scores on 450 test rows\n| MAP |\nVerdict: x\n"


def test_all_that_is_stored_has_its_place_on_a_page():
    given = parser("doc", toy=False).parse_args([])
    names = [*stored_reports.JOBS, "verdicts"]
    pages = [path.read_text(encoding="utf-8") for path in stored_reports.PAGES]
    for name in names:
        marked = [page for page in pages if f"<!-- {name}: made by python -m" in page]
        assert marked, name
        assert all(f"<!-- end of {name} -->" in page for page in marked)
    found = stored_reports.blocks(given)
    assert set(found) <= {*names, *(f"{name}_head" for name in names)}
    for page in pages:
        # The pages show what is stored.
        assert stored_reports.filled(page, found) == page


def test_a_cell_falls_short_by_errors_of_its_independent_scalars():
    row = {"within": 0.5, "runs": 40, "scalars": 1, "covered": 0.9 - 2 * np.sqrt(0.09 / 20)}
    assert np.isclose(verdict_calibration.short_of(row), 2)
    many = row | {"scalars": 300}
    assert np.isclose(verdict_calibration.short_of(many), 2 * np.sqrt(verdict_calibration.FACTORS))
