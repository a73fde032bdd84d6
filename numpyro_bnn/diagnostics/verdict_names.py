"""The names of the six verdicts, and what the three deprecated names of the first release mean."""

import warnings

from numpyro.util import find_stack_level

# Verdicts by their former names, which stood for limits on R-hat and effective draws.
_WITHIN = frozenset({"within_tolerance"})
_OLD = {
    "converged": _WITHIN,
    "predictions_converged": _WITHIN,
    "not_converged": frozenset({"within_tolerance_on_average", "run_longer", "chains_disagree"}),
}


class Verdict(str):
    """A verdict: a string that can still be compared with deprecated names.

    One of `"within_tolerance"`, `"within_tolerance_on_average"`, `"run_longer"`, `"chains_disagree"`,
    `"too_short"` and `"invalid"`. For one more release it can be compared by `==`, `!=` or `in` a tuple or
    list with `"converged"`, `"predictions_converged"` or `"not_converged"`, with a warning: the first two
    mean within tolerance, the third means every other verdict on a run that could be judged. In sets and as
    keys of dicts only the new names work.
    """

    __slots__ = ("one_chain",)

    one_chain: bool

    def __new__(cls, name: str, one_chain: bool = False) -> "Verdict":
        """A verdict by its name; with `one_chain` its words say that there was nothing to compare with."""
        made = super().__new__(cls, name)
        made.one_chain = one_chain
        return made

    def __eq__(self, other: object) -> bool:
        meant = _OLD.get(other) if type(other) is str else None
        if meant is None:
            return str.__eq__(self, other)
        warnings.warn(
            f"report.verdict was compared with {other!r}, which is no verdict any more; this one is "
            f"{str(self)!r}. Compare with {' or '.join(map(repr, sorted(meant)))} instead.",
            DeprecationWarning,
            stacklevel=find_stack_level(),
        )
        return str(self) in meant

    def __ne__(self, other: object) -> bool:
        return not self == other

    # A class that defines == loses its hash.
    __hash__ = str.__hash__

    @property
    def words(self) -> str:
        """The verdict as it is written in a sentence, with spaces."""
        words = self.replace("_", " ")
        alone = self.one_chain and self.startswith("within_tolerance")
        return f"{words}, by one chain alone" if alone else words

    def at_best(self, worst: str) -> "Verdict":
        """This verdict, replaced by `worst` where it is within tolerance."""
        return Verdict(worst, self.one_chain) if self.startswith("within_tolerance") else self
