"""Studies of the judge: what their findings say, and the pages that are filled with stored reports."""

import numpy as np

from benchmarks.diagnostics import stored_reports, verdict_calibration


def test_the_report_is_cut_out_of_what_the_main_job_prints():
    output = (
        "digits: 3 rows\n    Scores on 450 test rows   \n| MAP |\nVerdict: x\nAll of it: /a/b\n"
    )
    assert stored_reports.printed(output) == "    Scores on 450 test rows\n| MAP |\nVerdict: x\n"


def test_a_cell_falls_short_by_errors_of_its_independent_scalars():
    row = {"within": 0.5, "runs": 40, "scalars": 1, "covered": 0.9 - 2 * np.sqrt(0.09 / 20)}
    assert np.isclose(verdict_calibration.short_of(row), 2)
    many = row | {"scalars": 300}
    assert np.isclose(verdict_calibration.short_of(many), 2 * np.sqrt(verdict_calibration.FACTORS))
