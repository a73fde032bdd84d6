"""Neal's examples: the story is what the stored rows say."""

import pytest

from benchmarks.neal import story

pytestmark = pytest.mark.usefixtures("quick_compile")


ROWS = """problem,route,quantity,mean,mcse,rhat,reference,reference_mcse,z
rdata,one,log_sigma_ih,1.0,0.3,1.01,-1.5,0.4,5
rdata,one,log_sigma_bh,0.0,0.3,1.02,0.5,0.4,-1
rdata,one,test_log_predictive,0.8,0.03,1.0,0.8,0.04,0
rdata,one,minor_mode_mass,0.05,0.01,1.0,0.04,0.01,0.7
rdata,one,minor_mode_log_sigma_ih,0.1,0.1,1.9,0.1,0.1,0
rdata,one,predictions_max_rhat,1.04,,,,,
rdata,one,log_evidence_replica_0,40.0,0.3,,,,
rdata,one,log_evidence_replica_1,42.0,0.4,,,,
rdata,two,log_sigma_ih,1.0,0.3,1.2,-1.5,0.4,5
rdata,two,log_sigma_bh,1.2,0.4,1.2,0.5,0.4,1
rdata,two,test_log_predictive,0.8,0.03,1.0,0.8,0.04,0
rdata,two,predictions_max_rhat,1.0,,,,,
"""


def test_neals_examples_are_told_from_their_rows(tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    stored = tmp_path / "posteriors.csv"
    stored.write_text(ROWS)
    found = story.read(stored)
    one, two = found["rdata", "one"], found["rdata", "two"]
    z = story.from_reference(one)
    assert set(z) == {"log_sigma_ih", "log_sigma_bh", "test_log_predictive", "minor_mode_mass"}
    assert z["log_sigma_ih"] == pytest.approx(5.0)
    # The R-hat of what is within a mode is no sign of convergence.
    assert story.worst_rhat(one) == pytest.approx(1.04)
    assert story.worst_rhat(two) == pytest.approx(1.2)
    assert story.log_evidence(one) == pytest.approx((41.0, 1.0, 0.25))
    assert story.log_evidence(two) is None
    assert story.from_route(one, two)["log_sigma_bh"] == pytest.approx(-1.2 / 0.5)
    said = list(story.findings(found))
    assert any("3 of 4 means within three joint errors" in s and "log_sigma_ih" in s for s in said)
    assert not any("both converged" in s for s in said)
    story.main(["--rows", str(stored), "--output", str(tmp_path)])
    assert (tmp_path / "story.png").stat().st_size > 1000
    assert "not converged" in (tmp_path / "story.md").read_text()
