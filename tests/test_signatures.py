"""Options are visible: every public callable names them in its signature and in its docstring."""

import inspect
import re
from importlib import import_module

import pytest

import numpyro_bnn as bnn

MODULES = ("gradients", "likelihoods", "moves", "preconditioners", "priors", "schedules")
# Rooms of their own tests.
ELSEWHERE = {"diagnostics", "plots", "scores"}
# Keyword arguments of the user's model, of its network or of a kernel that the user names: there is no
# telling which there are.
OF_THE_MODEL = {
    "": """
        constant_sgd deep_ensemble laplace map_estimate mean_field optimize potential_of
        prior_predictive random_module randomized_map swag
    """,
    "of a kernel": "fit neal",
}
FREE = {name for names in OF_THE_MODEL.values() for name in names.split()}


def public():
    found = {name: getattr(bnn, name) for name in bnn.__all__ if name not in bnn._MODULES}
    for module in MODULES:
        members = getattr(bnn, module)
        found |= {f"{module}.{name}": getattr(members, name) for name in members.__all__}
    return {
        name: value
        for name, value in found.items()
        if callable(value) and not getattr(value, "_is_protocol", False)
    }


PUBLIC = public()
OURS = {
    name: value
    for name, value in PUBLIC.items()
    if value.__module__.split(".")[1] not in ("cli", "diagnostics", "posterior", "run", "workflow")
}


def parameters_of(value):
    return inspect.signature(value).parameters.values()


@pytest.mark.parametrize("name", OURS)
def test_no_option_is_hidden(name):
    kinds = {p.kind for p in parameters_of(OURS[name])}
    open_ended = inspect.Parameter.VAR_KEYWORD in kinds
    assert open_ended == (name in FREE), (
        f"{name} takes **{'' if open_ended else 'no '}keywords: write its options out, or list it "
        "with those that hand keywords to a model"
    )


def documented(value):
    """Names in the lines `:param name:` (or `name, name:`) and in the list of a record's fields."""
    text = inspect.getdoc(value) or ""
    if inspect.isclass(value):
        text += "\n" + (inspect.getdoc(value.__init__) or "")
    named = re.findall(r"^\s*:param ([^:]+):", text, re.M)
    named += re.findall(r"^- ((?:\*\*\w+\*\*,? ?)+)", text, re.M)
    return {word.strip("* ") for words in named for word in words.split(",")}


@pytest.mark.parametrize("name", OURS)
def test_each_option_is_in_the_docstring(name):
    value = OURS[name]
    of_flax = {"parent", "name"} if name == "MLP" else set()
    named = {p.name for p in parameters_of(value)} - of_flax
    assert named <= documented(value), f"{name} does not tell what {named - documented(value)} is"


KERNELS = [name for name, value in OURS.items() if inspect.isclass(value)]
KERNELS = [name for name in KERNELS if issubclass(OURS[name], bnn.SGMCMC)]


@pytest.mark.parametrize("name", KERNELS)
def test_an_unknown_option_is_refused_by_the_kernel_itself(name):
    required = {"dynamics": None} if name == "SGMCMC" else {}
    with pytest.raises(TypeError, match=r"\.__init__\(\) got an unexpected .*'step_sise'"):
        OURS[name](lambda: None, step_size=0.1, step_sise=0.2, **required)


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_lists_its_names(module):
    loaded = getattr(bnn, module)
    assert isinstance(loaded.__all__, list)
    assert loaded.__all__ == sorted(loaded.__all__)
    for name in loaded.__all__:
        assert getattr(import_module(loaded.__name__), name) is not None


def model(x, y=None):
    """Nothing."""


def made():
    """An object of every public class, and of every public function that makes one."""
    priors, likelihoods, moves = bnn.priors, bnn.likelihoods, bnn.moves
    normal = priors.Normal(1.5)
    objects = {
        "priors.ByPath": priors.ByPath({"*.bias": normal, "*": None}),
        "priors.FanIn": priors.FanIn(2.0),
        "priors.FromFunction": priors.FromFunction(model),
        "priors.Hierarchical": priors.Hierarchical(0.5, 0.25),
        "priors.Horseshoe": priors.Horseshoe(0.1),
        "priors.Laplace": priors.Laplace(0.3),
        "priors.Normal": normal,
        "priors.Prior": priors.Prior(),
        "priors.StudentT": priors.StudentT(5.0),
        "priors.pretrained": priors.pretrained({"kernel": [[1.0]]}, 0.2),
        "likelihoods.Precision": likelihoods.Precision(2.0, 3.0),
        "moves.Bound": moves.Bound(model, (), {}),
        "moves.Interleaved": moves.Interleaved(bnn.BAOAB(model, step_size=0.1), []),
        "moves.OutputLayerGibbs": moves.OutputLayerGibbs(["a"]),
        "moves.PrecisionRedraw": moves.PrecisionRedraw(),
        "moves.RidgeScaling": moves.RidgeScaling(0.2),
        "moves.UnitRefresh": moves.UnitRefresh("a", ["b"], 0.1),
        "moves.UnitRescaling": moves.UnitRescaling("a", "b"),
        "gradients.full": bnn.gradients.full(7),
        "gradients.minibatch": bnn.gradients.minibatch(7, "blocks"),
        "gradients.control_variate": bnn.gradients.control_variate(7),
        "gradients.svrg": bnn.gradients.svrg(7, 9),
        "preconditioners.diagonal": bnn.preconditioners.diagonal(2.5),
        "preconditioners.from_warmup": bnn.preconditioners.from_warmup(17),
        "preconditioners.given_precisions": bnn.preconditioners.given_precisions(3),
        "preconditioners.identity": bnn.preconditioners.identity(),
        "preconditioners.rmsprop": bnn.preconditioners.rmsprop(0.7),
        "schedules.cyclical": bnn.schedules.cyclical(0.1, 10),
        "schedules.from_learning_rate": bnn.schedules.from_learning_rate(0.1, 9, momentum=True),
        "schedules.polynomial": bnn.schedules.polynomial(0.1, 10.0, 0.6),
        "MLP": bnn.MLP((3,), 1),
        "regression": bnn.regression(bnn.MLP((3,), 1), normal),
        "classification": bnn.classification(bnn.MLP((3,), 2), normal),
        "parameterize": bnn.parameterize(model, "centered"),
        "integrate_output": bnn.integrate_output(model, sites=["a"]),
        "ParallelTempering": bnn.ParallelTempering(model, num_rungs=5),
        "PrecisionGibbs": bnn.PrecisionGibbs(model),
        "neal": bnn.neal(model),
        "BNNRegressor": bnn.BNNRegressor((3,), prior=normal),
        "BNNClassifier": bnn.BNNClassifier((3,), num_chains=2),
    }
    for name in sorted(set(KERNELS) - {"SGMCMC"}):
        objects[name] = OURS[name](model, step_size=0.25)
    return objects


MADE = made()
# What a good text must tell beside the name.
TOLD = {
    "priors.ByPath": "ByPath({'*.bias': Normal(scale=1.5), '*': None})",
    "priors.Hierarchical": "concentration=0.5, rate=0.25",
    "priors.pretrained": "'kernel': ",
    "regression": "regression(MLP(hidden=(3,), outputs=1, activation=tanh), Normal(scale=1.5), likelihood=",
    "gradients.minibatch": "minibatch(batch_size=7, order='blocks')",
    "gradients.svrg": "period=9",
    "preconditioners.rmsprop": "rmsprop(decay=0.7",
    "schedules.cyclical": "cyclical(peak=0.1, cycle_length=10, exploration=0.8)",
    "BAOAB": "BAOAB(model, dynamics=Splitting(letters='BAOA'",
    "WindowedHMC": "persistence=0.0",
    "MCLMC": "energy_variance=0.0005",
    "ParallelTempering": "ParallelTempering(model, kernel=HMC, num_rungs=5, moves=())",
    "neal": "neal(WindowedHMC(parameterize(model, 'centered'), dynamics=",
    "BNNRegressor": "BNNRegressor(hidden=(3,), prior=Normal(scale=1.5))",
    "BNNClassifier": "num_chains=2",
    "parameterize": "parameterize(model, 'centered')",
    "integrate_output": "integrate_output(model, sites=('a',))",
}


@pytest.mark.parametrize("name", MADE)
def test_an_object_tells_what_it_is(name):
    text = repr(MADE[name])
    assert " object at 0x" not in text
    assert name.rsplit(".", 1)[-1] in text
    assert TOLD.get(name, "") in text
    if name in KERNELS:
        assert "step_size=0.25" in text


def test_every_public_class_is_among_them():
    classes = {name for name, value in OURS.items() if inspect.isclass(value)}
    # Made by the functions below them, by a fit, or from dynamics that the user brings.
    by_others = {"likelihoods.ReadyModel", "likelihoods.Standardization", "SGMCMC", "OnHost"}
    assert classes - by_others <= set(MADE)
