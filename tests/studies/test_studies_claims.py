"""Numbers on the pages are those of the stored rows: a row that changes is seen."""

import pytest
from claims_of_mixing import CLAIMS as OF_MIXING
from claims_of_predictions import CLAIMS as OF_PREDICTIONS
from claims_of_small_studies import CLAIMS as OF_SMALL
from claims_of_studies import CLAIMS as OF_OTHERS
from pages_of_studies import PREDICTIONS, page, plain, rows_of

from benchmarks._shared import mnist_posteriors
from benchmarks.predictions import covariate_shift

CLAIMS = OF_MIXING | OF_PREDICTIONS | OF_SMALL | OF_OTHERS


def test_what_averages_over_shifted_images_are_over_is_said():
    length = covariate_shift.LENGTHS["full"]
    counts = [mnist_posteriors.averaged_over(m, length) for m in ("ensemble", "posterior")]
    assert "{} networks of the ensemble and {} of the posterior".format(*counts) in page(
        PREDICTIONS
    )


def missing(claim, rows):
    """What the rows tell and a page does not."""
    told = [plain(text) for text in claim.tell(rows)]
    return [text for text in told for name in claim.pages if text not in page(name)]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_says_what_the_rows_say(name):
    claim = CLAIMS[name]
    assert not missing(claim, rows_of(claim.study))


@pytest.mark.parametrize("name", CLAIMS)
def test_a_row_that_changes_is_seen(name):
    claim = CLAIMS[name]
    rows = rows_of(claim.study)
    found = [row for row in rows if all(row[k] == v for k, v in claim.row.items())]
    assert len(found) == 1
    old = found[0][claim.column]
    found[0][claim.column] = {"yes": "no", "no": "yes"}[old] if isinstance(old, str) else 1.5 * old
    assert missing(claim, rows)
